"""Graphs by names alone: searching for cycles, putting members in order."""

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from flowfabric.errors import CycleDetected, GraphTooLargeForCycleCheck

N = TypeVar("N", bound=Hashable)

MOST_NODES: Final = 1_000


class CycleSearch:
    """Would an edge from `upstream` to `downstream` close a cycle?

    Walks breadth first from the downstream over outgoing edges. It asks for the edges of its
    `frontier`, is fed them, and so on until the frontier is empty: then the edge closes none.
    """

    def __init__(self, upstream: str, downstream: str, most: int = MOST_NODES) -> None:
        self.frontier: tuple[str, ...] = (downstream,)
        self._upstream = upstream
        self._most = most
        self._visited = {downstream}

    def feed(self, targets: Iterable[str]) -> None:
        """Take the targets of all edges that leave the frontier, in their order."""
        found: list[str] = []
        for target in targets:
            if target == self._upstream:
                raise CycleDetected(f"{self._upstream} is already behind its new downstream")
            if target in self._visited:
                continue
            self._visited.add(target)
            if len(self._visited) > self._most:
                raise GraphTooLargeForCycleCheck(
                    f"more than {self._most} members lie behind the downstream"
                )
            found.append(target)
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
