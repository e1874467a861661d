"""Flows drawn from a seed: members, the edges between them, groups, and work left over."""

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, Final

import msgspec

from flowfabric.core.graph import Edge, Group, Unsettled, Work, place_text
from flowfabric.core.ids import for_flow
from flowfabric.core.new_execution import NewExecution
from flowfabric.core.record import Record
from tests.model.sides import COUNTS

_UUID: Final = "00000000-0000-4000-{:04x}-{:012x}"
_LEFT_OVER: Final[tuple[tuple[Work, ...], ...]] = (
    ("settle", "gather", "cancel_siblings", "cancel_children"),
    ("cancel_siblings",),
    ("cancel_children",),
)
_REASONS: Final[dict[Work, tuple[str, ...]]] = {
    "settle": ("",),
    "gather": ("", "replayed"),
    "cancel_siblings": ("sibling_quorum_satisfied",),
    "cancel_children": ("parent failed: broken",),
}
_OUTCOMES: Final = {"satisfied": "success", "impossible": "failed"}
_replace = msgspec.structs.replace


class DrawnFlow:
    """One flow: its members, some of which do not exist, and the edges between them."""

    def __init__(self, luck: Random, number: int, now: int) -> None:
        self.luck = luck
        self._number, self._now, self._edges = number, now, 0
        self.flow_id = self.uuid(0)
        self.lane = f"lane-{number}"
        self.members = [self.own(place) for place in range(1, luck.randint(4, 9))]
        self.strangers = [self.own(90)]

    def uuid(self, place: int) -> str:
        return _UUID.format(self._number, place)

    def own(self, place: int) -> str:
        return for_flow(COUNTS, self.flow_id, self.uuid(place))

    def some(self, values: Sequence[str], most: int) -> list[str]:
        return self.luck.sample(values, self.luck.randint(0, min(most, len(values))))

    def edge(self, source: str, target: str, **fields: Any) -> Edge:
        self._edges += 1
        own = self.uuid(0xE000 + self._edges)
        return Edge(edge_id=own, flow_id=self.flow_id, source=source, target=target, **fields)

    def _old_edge(self, source: str, target: str) -> Edge:
        luck = self.luck
        state = luck.choice(("open", "open", "open", "open", "staged", "satisfied", "impossible"))
        return self.edge(
            source,
            target,
            kind=luck.choice(("success_only", "success_only", "finished")),
            data_ref=luck.choice(("", "input")),
            round=luck.choice((0, 0, 0, 0, 1)),
            past_ends=luck.choice((0, 0, 1, 2)),
            state=state,
            outcome=_OUTCOMES.get(state, ""),
        )

    def edges(self) -> list[Edge]:
        found: list[Edge] = []
        for place, target in enumerate(self.members):
            sources = self.some([*self.members[:place], *self.strangers], 5)
            found += [self._old_edge(source, target) for source in sources]
        return found

    def group(self, target: str, edges: Iterable[Edge], own_round: int = 0) -> Group:
        """One that counts its edges as they are."""
        luck = self.luck
        states = [edge.state for edge in edges if edge.round == own_round]
        n = len(states) - states.count("staged")
        return Group(
            target=target,
            flow_id=self.flow_id,
            policy=luck.choice(("all_of", "any_of", "quorum", "quorum")),
            k=luck.choice((1, n, n + 1, n + 1)),
            on_satisfied=luck.choice(("", "cancel_remaining", "cancel_remaining", "let_run")),
            n=n,
            staged=states.count("staged"),
            succeeded=states.count("satisfied"),
            failed=states.count("impossible"),
            round=own_round,
        )

    def groups(self, edges: Sequence[Edge]) -> list[Group]:
        found: list[Group] = []
        for target in self.members:
            own = [edge for edge in edges if edge.target == target]
            if own and self.luck.random() < 0.9:
                state = self.luck.choice(("pending", "pending", "pending", "satisfied"))
                found.append(_replace(self.group(target, own), state=state))
        return found

    def work(self, edges: Sequence[Edge]) -> tuple[Unsettled, ...]:
        luck, ids = self.luck, ["", "", "", "", *(edge.edge_id for edge in edges)]
        kinds: tuple[Work, ...] = luck.choice(_LEFT_OVER)
        return tuple(
            Unsettled(
                kind,
                luck.choice((*self.members, *self.members, *self.strangers)),
                self._after(kind, ids),
                luck.choice(_REASONS[kind]),
                self._within(kind, ids),
            )
            for kind in luck.choices(kinds, k=luck.randint(0, 5))
        )

    def _after(self, kind: Work, ids: Sequence[str]) -> str:
        if kind != "cancel_children":
            return self.luck.choice(ids)
        place = place_text((self._now, self.luck.choice(self.members)))
        return self.luck.choice(("", "", "", place))

    def _within(self, kind: Work, ids: Sequence[str]) -> str:
        match kind:
            case "cancel_siblings":
                return self.luck.choice(ids)
            case "cancel_children":
                return self.luck.choice("01")
            case _:
                return ""

    def _parent(self, own: str) -> dict[str, Any]:
        """Many are children of some member before them."""
        place = self.members.index(own) if own in self.members else 0
        if not place or self.luck.random() < 0.4:
            return {}
        return {
            "parent_id": self.luck.choice(self.members[:place]),
            "parent_round": self.luck.choice((0, 0, 0, 1)),
            "on_parent_end": self.luck.choice(("", "", "", "leave")),
        }

    def new_member(self, own: str) -> NewExecution:
        record = Record(
            execution_id="",
            namespace="default",
            lane=self.lane,
            flow_id=self.flow_id,
            **self._parent(own),
        )
        return NewExecution(
            execution_id=own,
            record=record,
            input=b"own",
            has_dependencies=self.luck.random() < 0.5,
            delay_until=self._now + self.luck.choice((0, 0, 1, 1, 2, 3, 60_000)),
        )


class Ungathered(DrawnFlow):
    """An earlier step has left the edges of every member to look at."""

    def work(self, edges: Sequence[Edge]) -> tuple[Unsettled, ...]:
        return tuple(Unsettled("gather", own) for own in self.members)


class Crowd(DrawnFlow):
    """Many members in few states and nothing left to settle."""

    def __init__(self, luck: Random, number: int, now: int) -> None:
        super().__init__(luck, number, now)
        self.members = [self.own(place) for place in range(1, luck.randint(8, 14))]

    def work(self, edges: Sequence[Edge]) -> tuple[Unsettled, ...]:
        return ()

    def new_member(self, own: str) -> NewExecution:
        has_dependencies = self.luck.random() < 0.2
        return _replace(super().new_member(own), has_dependencies=has_dependencies, delay_until=0)
