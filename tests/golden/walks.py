"""Scenarios of settling: flows as earlier steps, editors and lost keys may have left them, drawn
from a seed, and what each further step makes of them."""

from random import Random
from typing import Any, Final

import msgspec

from flowfabric.backend.flow_store import EdgeQuery
from flowfabric.backend.types import ClaimRequest, With
from flowfabric.backend.valkey.keys import FIELDS, stored_key
from flowfabric.core.capabilities import set_id
from flowfabric.core.graph import CancelPolicy, Flow, GraphEdit, Unsettled
from flowfabric.core.new_execution import NewExecution, NewGraph
from flowfabric.core.plan import EndAttempt, Guard, PauseAttempt, Plan
from flowfabric.core.rules.flows import cancel_flow
from flowfabric.core.states import FINAL, LIVE, State
from flowfabric.errors import Bug, OtherFault
from tests.clock import VirtualClock
from tests.golden.drawn_flows import Crowd, DrawnFlow, Ungathered
from tests.golden.mechanisms import Trace
from tests.model.comparing import new_events
from tests.model.sides import COUNTS, Side
from tests.model.world import told
from tests.valkey_server import shared_server

_FLOWS: Final = 16
_MOST_STEPS: Final = 12
_BESIDE: Final = frozenset[With]({"input", "group", "attempts"})
_ACTS: Final = ("_settle", "_settle", "_settle", "_end", "_replay", "_park")
_replace = msgspec.structs.replace


def _ended(own: str, state: State, rule: str, *, settle: bool = False) -> Plan:
    attempt = EndAttempt("ended_cancelled", "was ended")
    guard = Guard(frozenset[str](LIVE))
    changes = {"state": state}
    return Plan(target=own, rule=rule, guard=guard, set=changes, attempt=attempt, settle=settle)


class _Walk:
    """One flow on one store."""

    def __init__(self, side: Side, clock: VirtualClock, draw: DrawnFlow, trace: Trace) -> None:
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
            answers = await self._backend.apply(plans)
            # Two stores that break in the same way still break.
            assert not any(isinstance(answer, Bug) for answer in answers), answers
            self._trace.append((plans[0].rule, told(answers)))

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
    target="", rule="note", guard=Guard(frozenset[str](LIVE)), set={"replay_count": 1, "round": 1}
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
    rule="await_edge",
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
        await _Walk(side, clock, DrawnFlow(luck, number, clock()), trace).go()
    return trace


async def ungathered(side: Side, clock: VirtualClock, seed: int) -> Trace:
    luck, trace = Random(seed), Trace()
    for number in range(_FLOWS):
        await _Walk(side, clock, Ungathered(luck, number, clock()), trace).go()
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
        await self._apply(_replace(_HOLD, target=others[1]), _replace(_HOLD, target=last))
        self._clock.advance(5)
        await self._apply(_replace(_COMPLETE, target=first, settle=True))
        for _ in range(_MOST_STEPS):
            await self._look()
            await self._settle()


async def results(side: Side, clock: VirtualClock, seed: int) -> Trace:
    trace = Trace()
    await _Fan(side, clock, DrawnFlow(Random(seed), 0, clock()), trace).go()
    return trace


class _Family(_Walk):
    """A root that fails, whose children were made one by one; so was, in vain, who names no parent
    that lives in the same round of the same flow."""

    async def go(self) -> None:
        draw = self._draw
        root, first, kept, bound, *others = draw.members = [draw.own(at) for at in range(1, 9)]
        await self._begin(draw.flow_id, draw.new_member(root))
        await self._begin(beside := self._flow_beside(), draw.new_member(draw.strangers[0]))
        await self._make(first, root)
        await self._make(kept, root, on_parent_end="leave")
        await self._make(bound, root)
        await self._make(others[0], root, parent_round=1)
        await self._make(others[1], others[3])
        await self._make(others[2], draw.strangers[0])
        await self._make(others[2], draw.strangers[0], flow_id=beside)
        await self._claim(3)
        await self._apply(_replace(_COMPLETE, target=first, settle=True))
        reason = "failed"[: self._luck.randint(2, 4)]
        failed = _ended(root, "failed", "fail", settle=True)
        await self._apply(_replace(failed, set={"state": "failed", "failure_reason": reason}))
        await self._make(others[3], root)
        await self._go_on()
        await self._apply(_replace(_ENDS[1], target=kept, settle=True))
        await self._go_on()

    async def _go_on(self) -> None:
        for _ in range(3):
            await self._look()
            await self._settle()
        self._trace.append(("events", await new_events(self._side)))

    def _flow_beside(self) -> str:
        """Another flow, in the same partition."""
        own = COUNTS.of_flow(self._draw.flow_id)
        places = (self._draw.uuid(0xF000 + number) for number in range(256))
        return next(one for one in places if COUNTS.of_flow(one) == own)

    async def _begin(self, flow_id: str, member: NewExecution) -> None:
        flow = Flow(flow_id=flow_id, namespace="default")
        record = _replace(member.record, flow_id=flow_id, parent_id="")
        alone = _replace(member, record=record, has_dependencies=False, delay_until=0)
        await self._backend.create_graph([NewGraph(flow=flow, members=(alone,))])

    async def _make(self, own: str, parent: str, **fields: Any) -> None:
        member = self._draw.new_member(own)
        tied = {"parent_id": parent, "parent_round": 0, "on_parent_end": ""} | fields
        child = _replace(
            member, record=_replace(member.record, **tied), has_dependencies=False, delay_until=0
        )
        self._trace.append(("child", told(await self._backend.create([child]))))


async def families(side: Side, clock: VirtualClock, seed: int) -> Trace:
    luck, trace = Random(seed), Trace()
    for number in range(6):
        await _Family(side, clock, DrawnFlow(luck, number, clock()), trace).go()
    return trace


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
        await _Cancelled(side, clock, Crowd(luck, number, clock()), trace).go()
    return trace
