"""Graphs by names alone: searching for cycles, putting members in order."""

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from flowfabric.errors import CycleDetected, GraphTooLargeForCycleCheck

N = TypeVar("N", bound=Hashable)

MOST_NODES: Final = 1_000


class CycleSearch:
    """Would an edge that leads from `goal` to a member close a cycle? It does if a way leads from
    there to the goal.

    Walks breadth first. It asks for the ways that lead on from its `frontier`, is fed them, and so
    on until the frontier is empty: then there is none to the goal.
    """

    def __init__(self, goal: str, *starts: str, most: int = MOST_NODES) -> None:
        self.frontier: tuple[str, ...] = starts
        self._goal = goal
        self._most = most
        self._visited = set(starts)

    def feed(self, ends: Iterable[str]) -> None:
        """Take where all the ways from the frontier lead, in their order."""
        found: list[str] = []
        for end in ends:
            if end == self._goal:
                raise CycleDetected(f"a way leads back to {self._goal}")
            if end in self._visited:
                continue
            self._visited.add(end)
            if len(self._visited) > self._most:
                raise GraphTooLargeForCycleCheck(f"more than {self._most} members to be searched")
            found.append(end)
        self.frontier = tuple(found)


def in_order(nodes: Iterable[N], edges: Iterable[tuple[N, N]]) -> list[N]:
    """The nodes, every one behind those it depends on and otherwise as given. Those on a cycle, or
    behind one, are left out."""
    waits = dict.fromkeys(nodes, 0)
    outgoing: dict[N, list[N]] = {}
    for source, target in edges:
        if source in waits and target in waits:
            outgoing.setdefault(source, []).append(target)
            waits[target] += 1
    ready = deque(node for node, count in waits.items() if not count)
    ordered: list[N] = []
    while ready:
        node = ready.popleft()
        ordered.append(node)
        for target in outgoing.get(node, ()):
            waits[target] -= 1
            if not waits[target]:
                ready.append(target)
    return ordered


def find_cycle(nodes: Sequence[N], edges: Sequence[tuple[N, N]]) -> list[N]:
    """One cycle of the graph, each node leading to the next and the last to the first; empty when
    there is none."""
    free = set(in_order(nodes, edges))
    incoming: dict[N, N] = {
        target: source for source, target in edges if source not in free and target not in free
    }
    if not incoming:
        return []
    return _walk_back(incoming)


def _walk_back(incoming: Mapping[N, N]) -> list[N]:
    """Every node that is left has a source among those left, so walking back comes to a cycle."""
    node = next(iter(incoming))
    seen: dict[N, int] = {}
    path: list[N] = []
    while node not in seen:
        seen[node] = len(path)
        path.append(node)
        node = incoming[node]
    return path[seen[node] :][::-1]
