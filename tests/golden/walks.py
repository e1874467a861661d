"""Scenarios of settling: flows as earlier steps, editors and lost keys may have left them, drawn
from a seed, and what each further step makes of them."""

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, Final

import msgspec

from flowfabric.backend.flow_store import EdgeQuery
from flowfabric.backend.types import ClaimRequest, With
from flowfabric.backend.valkey.keys import FIELDS, stored_key
from flowfabric.core.capabilities import set_id
from flowfabric.core.graph import CancelPolicy, Edge, Flow, GraphEdit, Group, Unsettled, Work
from flowfabric.core.ids import for_flow
from flowfabric.core.new_execution import NewExecution, NewGraph
from flowfabric.core.plan import EndAttempt, Guard, PauseAttempt, Plan
from flowfabric.core.record import Record
from flowfabric.core.rules.flows import cancel_flow
from flowfabric.core.states import FINAL, LIVE, State
from flowfabric.errors import OtherFault
from tests.clock import VirtualClock
from tests.golden.mechanisms import Trace
from tests.model.sides import COUNTS, Side
from tests.model.world import told
from tests.valkey_server import shared_server

_UUID: Final = "00000000-0000-4000-{:04x}-{:012x}"
_FLOWS: Final = 16
_MOST_STEPS: Final = 12
_BESIDE: Final = frozenset[With]({"input", "group", "attempts"})
_ACTS: Final = ("_settle", "_settle", "_settle", "_end", "_replay", "_park")
_LEFT_OVER: Final[tuple[tuple[Work, ...], ...]] = (
    ("settle", "gather", "cancel_siblings"),
    ("cancel_siblings",),
)
_REASONS: Final[dict[Work, tuple[str, ...]]] = {
    "settle": ("",),
    "gather": ("", "replayed"),
    "cancel_siblings": ("sibling_quorum_satisfied",),
}
_OUTCOMES: Final = {"satisfied": "success", "impossible": "failed"}
_replace = msgspec.structs.replace


class _Draw:
    """One flow: its members, some of which do not exist, and the edges between them."""

    def __init__(self, luck: Random, number: int, now: int) -> None:
        self.luck = luck
        self.flow_id = _UUID.format(number, 0)
        self.lane = f"lane-{number}"
        self._number, self._now, self._edges = number, now, 0
        self.members = [self.own(place) for place in range(1, luck.randint(4, 9))]
        self.strangers = [self.own(90)]

    def own(self, place: int) -> str:
        return for_flow(COUNTS, self.flow_id, _UUID.format(self._number, place))

    def some(self, values: Sequence[str], most: int) -> list[str]:
        return self.luck.sample(values, self.luck.randint(0, min(most, len(values))))

    def edge(self, source: str, target: str, **fields: Any) -> Edge:
        self._edges += 1
        own = _UUID.format(self._number, 0xE000 + self._edges)
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
                luck.choice(ids),
                luck.choice(_REASONS[kind]),
                luck.choice(ids) if kind == "cancel_siblings" else "",
            )
            for kind in luck.choices(kinds, k=luck.randint(0, 5))
        )

    def new_member(self, own: str) -> NewExecution:
        record = Record(execution_id="", namespace="default", lane=self.lane, flow_id=self.flow_id)
        return NewExecution(
            execution_id=own,
            record=record,
            input=b"own",
            has_dependencies=self.luck.random() < 0.5,
            delay_until=self._now + self.luck.choice((0, 0, 1, 1, 2, 3, 60_000)),
        )


def _ended(own: str, state: State, rule: str, *, settle: bool = False) -> Plan:
    attempt = EndAttempt("ended_cancelled", "was ended")
    guard = Guard(frozenset[str](LIVE))
    changes = {"state": state}
    return Plan(target=own, rule=rule, guard=guard, set=changes, attempt=attempt, settle=settle)


class _Walk:
    """One flow on one store."""

    def __init__(self, side: Side, clock: VirtualClock, draw: _Draw, trace: Trace) -> None:
        self._side, self._clock, self._draw, self._trace = side, clock, draw, trace
        self._luck, self._backend = draw.luck, side.backend
        # Later than any that edges are drawn with.
        self._round = 1

    async def go(self) -> None:
        await self._create()
        await self._take_and_end()
        self._lose(self._draw.some(self._draw.members, 1 if self._luck.random() < 0.5 else 0))
        for _ in range(_MOST_STEPS):
            await self._look()
            await getattr(self, self._luck.choice(_ACTS))()
            self._clock.advance(self._luck.choice((0, 1)))
        await self._look()

    async def _create(self) -> None:
        draw = self._draw
        edges = draw.edges()
        flow = Flow(flow_id=draw.flow_id, namespace="default", unsettled=draw.work(edges))
        graph = NewGraph(
            flow=flow,
            members=tuple(map(draw.new_member, draw.members)),
            edges=tuple(edges),
            groups=tuple(draw.groups(edges)),
        )
        await self._backend.create_graph([graph])

    async def _take_and_end(self) -> None:
        """Members in every state, none of which has settled its edges."""
        await self._claim(8)
        for own in self._draw.members:
            plans = self._luck.choice(_FATES)
            await self._apply(*(_replace(plan, target=own) for plan in plans))

    async def _claim(self, count: int) -> None:
        claim = ClaimRequest(
            worker_id="pool",
            worker_instance_id="pool-1",
            namespace="default",
            lanes=(self._draw.lane,),
            sets=(set_id(()),),
            ids=tuple((f"lease-{number}", f"attempt-{number}") for number in range(count)),
            lease_for=30_000,
        )
        self._trace.append(("claim", told(await self._backend.claim([claim]))))

    async def _apply(self, *plans: Plan) -> None:
        if plans:
            self._trace.append((plans[0].rule, told(await self._backend.apply(plans))))

    def _lose(self, members: list[str]) -> None:
        """Records that are gone behind the back of every mechanism."""
        for own in members:
            if self._side.name == "valkey":
                shared_server().run("HDEL", stored_key("execution", own), FIELDS["record"])
            else:
                self._memory_records().pop(own, None)

    def _memory_records(self) -> dict[str, Any]:
        found: dict[str, Any] = vars(vars(self._backend)["_runner"].tables)["_records"]
        return found

    async def _settle(self) -> None:
        self._trace.append(("settle", told(await self._backend.settle([self._draw.flow_id]))))

    async def _replay(self) -> None:
        """A member that ended waits for its edges again."""
        own = self._luck.choice(self._draw.members)
        query = EdgeQuery(self._draw.flow_id, "target", own)
        ((*found,),) = await self._backend.edges([query])
        edges = [_replace(edge, state="open", outcome="", resolved_at=0) for edge in found]
        await self._apply(
            Plan(
                target=own,
                rule="replay",
                guard=Guard(frozenset[str](FINAL)),
                set={"state": "blocked", "reason": "dependencies", "next": "replay"},
                graph=GraphEdit(edges=tuple(edges), groups=(self._draw.group(own, edges),)),
            )
        )

    async def _park(self) -> None:
        """A member that runs waits for earlier ones, some of which have ended: no way leads back. A
        plan with edges that moves nobody settles them too."""
        *others, own = self._draw.members[: self._luck.randint(2, len(self._draw.members))]
        self._round += 1
        kind = self._luck.choice(("finished", "success_only"))
        edges = [
            self._draw.edge(one, own, kind=kind, round=self._round, state="open")
            for one in self._draw.some(others, 3)
        ]
        group = self._draw.group(own, edges, self._round)
        plan = self._luck.choice((_PARK, _PARK, _LINK))
        edit = GraphEdit(edges=tuple(edges), groups=(group,))
        await self._apply(
            _replace(plan, target=own, graph=edit),
            _ended(self._luck.choice(others), "cancelled", "cancel", settle=True),
        )

    async def _end(self) -> None:
        own, ends = self._luck.choice(self._draw.members), _ENDS
        await self._apply(_replace(self._luck.choice(ends), target=own, settle=True))

    async def _look(self) -> None:
        backend, draw = self._backend, self._draw
        self._trace.append(("flow", await backend.flows([draw.flow_id])))
        self._trace.append(("edges", await backend.edges([EdgeQuery(draw.flow_id, "flow")])))
        self._trace.append(("members", await backend.read(draw.members, _BESIDE)))
        self._trace.append(("siblings", dict(backend.counters().siblings)))


_NOTE: Final = Plan(
    target="", rule="note", guard=Guard(frozenset[str](LIVE)), set={"replay_count": 1}
)
# A plan with edges may find its record blocked for nothing but these.
_LINK: Final = Plan(
    target="",
    rule="note",
    guard=Guard(frozenset({"waiting", "delayed", "active", "blocked/dependencies"})),
    set={"detail": "linked"},
)
_PARK: Final = Plan(
    target="",
    rule="park",
    guard=Guard(frozenset({"active"})),
    set={"state": "blocked", "reason": "dependencies", "next": "resume"},
    attempt=PauseAttempt("waiting_children"),
)
_COMPLETE: Final = Plan(
    target="",
    rule="complete",
    guard=Guard(frozenset({"active"})),
    set={"state": "completed"},
    attempt=EndAttempt("ended_success"),
    blobs={"result": b"seven77"},
    settle=False,
)
_HOLD: Final = Plan(
    target="",
    rule="hold",
    guard=Guard(frozenset({"waiting", "delayed", "blocked"})),
    set={"state": "blocked", "reason": "operator"},
)
_ENDS: Final = (
    _COMPLETE,
    _ended("", "cancelled", "cancel"),
    _ended("", "skipped", "skip"),
)
# What becomes of a member before the first step.
_FATES: Final[tuple[tuple[Plan, ...], ...]] = (
    (),
    (),
    (_COMPLETE,),
    (_COMPLETE,),
    (_COMPLETE,),
    (_NOTE, _COMPLETE),
    (_ENDS[1],),
    (_ENDS[2],),
    (_NOTE, _ended("", "expired", "expire")),
    (_HOLD,),
    (_HOLD,),
)


async def walks(side: Side, clock: VirtualClock, seed: int) -> Trace:
    luck, trace = Random(seed), Trace()
    for number in range(_FLOWS):
        await _Walk(side, clock, _Draw(luck, number, clock()), trace).go()
    return trace


class _Fan(_Walk):
    """The result of one member goes to four others. One has had it from whoever came first, one is
    held, and two have delays, of which one is just over. An earlier step has left siblings
    to cancel."""

    async def go(self) -> None:
        draw, now = self._draw, self._clock()
        first, *others, last = draw.members = [draw.own(place) for place in range(1, 7)]
        inbound = [draw.edge(first, own, data_ref="input", state="open") for own in others]
        inbound.append(draw.edge(last, others[0], state="open"))
        race = draw.group(others[0], (inbound[0], inbound[-1]))
        race = _replace(race, policy="any_of", on_satisfied="cancel_remaining")
        alone = [draw.group(edge.target, (edge,)) for edge in inbound[1:-1]]
        graph = NewGraph(
            flow=Flow(
                flow_id=draw.flow_id,
                namespace="default",
                unsettled=(
                    Unsettled("cancel_siblings", others[1], reason="sibling_quorum_satisfied"),
                ),
            ),
            members=tuple(
                _replace(draw.new_member(own), has_dependencies=own in others, delay_until=delay)
                for own, delay in zip(draw.members, (0, 0, 0, now + 5, now + 6, 0), strict=True)
            ),
            edges=tuple(inbound),
            groups=(race, *(_replace(group, policy="all_of") for group in alone)),
        )
        await self._backend.create_graph([graph])
        await self._claim(1)
        await self._apply(_replace(_HOLD, target=others[1]))
        self._clock.advance(5)
        await self._apply(_replace(_COMPLETE, target=first, settle=True))
        for _ in range(_MOST_STEPS):
            await self._look()
            await self._settle()


async def results(side: Side, clock: VirtualClock, seed: int) -> Trace:
    trace = Trace()
    await _Fan(side, clock, _Draw(Random(seed), 0, clock()), trace).go()
    return trace


class _Crowd(_Draw):
    """Many members in few states and nothing left to settle."""

    def __init__(self, luck: Random, number: int, now: int) -> None:
        super().__init__(luck, number, now)
        self.members = [self.own(place) for place in range(1, luck.randint(8, 14))]

    def work(self, edges: Sequence[Edge]) -> tuple[Unsettled, ...]:
        return ()

    def new_member(self, own: str) -> NewExecution:
        has_dependencies = self.luck.random() < 0.2
        return _replace(super().new_member(own), has_dependencies=has_dependencies, delay_until=0)


class _Unreadable:
    """In place of a record: whoever looks at it fails."""

    def __getattr__(self, name: str) -> Any:
        raise OtherFault("damaged")


class _Cancelled(_Walk):
    async def go(self) -> None:
        await self._create()
        members, luck = self._draw.members, self._luck
        self._lose([*members[: luck.choice((0, 0, 1, 3, 4, 5))], *self._draw.some(members[6:], 3)])
        self._spoil(luck.choice(members[5:]))
        policies: tuple[CancelPolicy, ...] = ("cancel_all", "cancel_pending")
        plan = cancel_flow(self._draw.flow_id, luck.choice(policies), "enough")
        self._trace.append(("cancel", told(await self._backend.apply_flows([plan]))))
        for _ in range(_MOST_STEPS):
            await self._look()
            await self._settle()

    def _spoil(self, own: str) -> None:
        """A record that is there and cannot be read."""
        if self._side.name == "valkey":
            shared_server().run("HSET", stored_key("execution", own), FIELDS["record"], "\x01")
        else:
            self._memory_records()[own] = _Unreadable()
        self._draw.members.remove(own)


async def cancelled(side: Side, clock: VirtualClock, seed: int) -> Trace:
    """A cancelled flow of which records are gone, or cannot be read, that are still listed."""
    luck, trace = Random(seed), Trace()
    for number in range(_FLOWS):
        await _Cancelled(side, clock, _Crowd(luck, number, clock()), trace).go()
    return trace
