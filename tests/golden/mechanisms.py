"""Scenarios of single mechanisms: output, reservations, chunks of a graph, notifications."""

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final

import msgspec

from flowfabric.backend.base import TopicSubscription
from flowfabric.backend.flow_store import EdgeQuery
from flowfabric.backend.types import (
    Append,
    ClaimRequest,
    ConfigPut,
    FrameRange,
    JournalAppend,
    SummaryPut,
    Trim,
)
from flowfabric.core.capabilities import set_id
from flowfabric.core.graph import Edge, Flow
from flowfabric.core.ids import for_flow
from flowfabric.core.journal import JournalEntry
from flowfabric.core.limits.asks import Admission, DefineQuota, LimitQuota, QuotaAsk, Vacate
from flowfabric.core.limits.gates import Quota, quota_gate
from flowfabric.core.new_execution import NewExecution, NewGraph
from flowfabric.core.plan import EndAttempt, Fence, Guard, PauseAttempt, Plan, Timer
from flowfabric.core.record import Record
from flowfabric.core.rules.attempts import complete
from flowfabric.core.streams import TRIM_SLACK
from flowfabric.operations.streams import Frame
from tests.clock import VirtualClock
from tests.model.sides import COUNTS, Side
from tests.model.world import told

# What happened, and what a store answered or showed.
Trace = list[tuple[str, Any]]
Play = Callable[[Side, VirtualClock, int], Awaitable[Trace]]

SMALL_OUTPUT: Final = {
    "journal.MAX_ENTRIES": 5,
    "journal.MAX_ENTRY_BYTES": 6,
    "streams.MAX_FRAME_BYTES": 6,
    "streams.NUMBERS_KEPT": 3,
    "streams.TRIM_SLACK": 2,
    "merge_patch.MAX_DOCUMENT_BYTES": 6,
}
_MODES: Final = ("durable", "durable", "summary", "best_effort")
# Nobody who is told waits that long.
_NOTICE_S: Final = 5.0
_FLOW: Final = "00000000-0000-4000-8000-0000000000aa"
# As many edges as Valkey writes into one text, and more.
_LONG_LIST: Final = 70
_OWN: Final = "{fp:1}:00000000-0000-4000-8000-00000000000"


def _new(number: int, *, gated: bool = False, flow_id: str = "") -> NewExecution:
    own = f"{_OWN}{number}" if not flow_id else for_flow(COUNTS, flow_id, f"{_OWN}{number}"[-36:])
    record = Record(
        execution_id="", namespace="default", lane="default", gated=gated, flow_id=flow_id
    )
    return NewExecution(execution_id=own, record=record, input=b"body")


def _claim(count: int, mode: Any = "take") -> ClaimRequest:
    return ClaimRequest(
        worker_id="pool",
        worker_instance_id="pool-1",
        namespace="default",
        lanes=("default",),
        sets=(set_id(()),),
        ids=tuple((f"lease-{number}", f"attempt-{number}") for number in range(count)),
        lease_for=30_000,
        mode=mode,
    )


async def output(side: Side, clock: VirtualClock, seed: int) -> Trace:
    """Frames, summaries and journals of one attempt, in sizes around their limits."""
    luck, trace, backend = Random(seed), Trace(), side.backend
    trace.append(("create", told(await backend.create([_new(1)]))))
    trace.append(("claim", told(await backend.claim([_claim(1)]))))
    own, fence = f"{_OWN}1", Fence("lease-0", 1, "attempt-0")
    version = 0
    for _ in range(60):
        append = Append(
            execution_id=own,
            attempt_index=0,
            fence=fence,
            frames=tuple(_frame(luck) for _ in range(luck.randint(1, 3))),
            trims=(Trim(luck.choice(_MODES), luck.randint(0, 6), exact=luck.random() < 0.5),),
            expire_ms=luck.choice((0, 800)),
            summary=_summary(luck, version),
        )
        answers = await backend.append([append])
        version = getattr(answers[0], "summary_version", version)
        trace.append(("append", told(answers)))
        trace.append(("frames", told(await backend.frames([FrameRange(own, 0, limit=50)]))))
        trace.append(("summary", await backend.summary(own, 0)))
        trace.append(("journal", told(await backend.journal([_steps(own, fence, luck)]))))
        trace.append(("journaled", await backend.journal_read(own, 0, 50)))
        clock.advance(luck.choice((0, 0, 1, 900)))
    return trace


def _frame(luck: Random) -> Frame:
    return Frame(
        frame_type="token",
        payload=b"x" * luck.choice((1, 5, 6, *((7,) if luck.random() < 0.1 else ()))),
        mode=luck.choice(_MODES),
        seq=luck.choice((0, 0, *range(1, 9))),
    )


def _summary(luck: Random, version: int) -> SummaryPut | None:
    if luck.random() < 0.6:
        return None
    document = b"x" * luck.choice((2, 5, 6, 6, 7))
    return SummaryPut(version, document, luck.choice((0, 1, 1, 2)))


def _steps(own: str, fence: Fence, luck: Random) -> JournalAppend:
    outcome = b"x" * luck.choice((1, 5, 6, 7))
    entries = tuple(
        JournalEntry(
            luck.choice("abcd"), luck.choice((1, 2)), luck.choice(("d", "d", "e")), outcome
        )
        for _ in range(luck.randint(1, 2))
    )
    return JournalAppend(own, fence, entries)


async def reservations(side: Side, clock: VirtualClock, seed: int) -> Trace:
    """Records whose limits have to be asked, more of them than a claim looks at."""
    executions = [_new(number, gated=number % 2 > 0) for number in range(9)]
    trace: Trace = [("create", told(await side.backend.create(executions)))]
    # A claim that looks in vain too often gives up.
    lanes = ("none", "no", "nothing", "default")
    in_vain = msgspec.structs.replace(_claim(2), lanes=lanes)
    trace.append(("in vain", told(await side.backend.claim([in_vain]))))
    for mode in ("take", "reserve", "take"):
        trace.append((mode, told(await side.backend.claim([_claim(2, mode)]))))
        clock.advance(1_000)
    return trace


async def trims(side: Side, clock: VirtualClock, seed: int) -> Trace:
    """Frames one by one, trimmed when there are enough to make it worth the while."""
    trace, backend = Trace(), side.backend
    await backend.create([_new(1)])
    await backend.claim([_claim(1)])
    append = Append(
        execution_id=f"{_OWN}1",
        attempt_index=0,
        fence=Fence("lease-0", 1, "attempt-0"),
        frames=(Frame(frame_type="token", payload=b"x"),),
        trims=(Trim("durable", TRIM_SLACK, exact=False),),
    )
    for _ in range(TRIM_SLACK + 3):
        trace.append(("append", told(await backend.append([append]))))
    return trace


async def waiters(side: Side, clock: VirtualClock, seed: int) -> Trace:
    """More waiters than one step admits, and more than it looks at to find one that fits."""
    narrow = Quota(
        quota_policy_id="", window_seconds=60, max_requests_per_window=1, max_concurrent=1
    )
    wide = msgspec.structs.replace(narrow, max_requests_per_window=9, max_concurrent=9)
    all_fit = await _raised(side, "1", narrow, wide, [True] * 6)
    # A resumed execution needs no entry, so it fits where others do not.
    more_slots = msgspec.structs.replace(narrow, max_concurrent=9)
    return all_fit + await _raised(side, "2", narrow, more_slots, [*[True] * 4, False])


async def _raised(side: Side, own: str, low: Quota, high: Quota, rates: list[bool]) -> Trace:
    """Executions that a quota turns away but for the first; a higher quota admits some of them, and
    more when the first has ended."""
    backend, trace, quota_id = side.backend, Trace(), f"00000000-0000-4000-8000-00000000000{own}"
    await backend.define([DefineQuota(msgspec.structs.replace(low, quota_policy_id=quota_id))])
    for number, rate in enumerate(rates):
        admission = Admission(
            execution_id=f"{_OWN}{number}",
            asks=(QuotaAsk(quota_id),),
            holder=f"holder-{number}",
            hold_ms=30_000,
            rank=number,
            rate=rate,
        )
        trace.append(("admit", told(await backend.admit([admission]))))
    raised = LimitQuota(msgspec.structs.replace(high, quota_policy_id=quota_id))
    trace.append(("raise", told(await backend.define([raised]))))
    ended = Vacate(gate=quota_gate(quota_id), execution_id=f"{_OWN}0", holder="holder-0")
    trace.append(("vacate", told(await backend.vacate([ended]))))
    return trace


async def chunks(side: Side, clock: VirtualClock, seed: int) -> Trace:
    """A graph of which the last chunk is missing."""
    flow = Flow(flow_id=_FLOW, namespace="default", incomplete=True)
    members = tuple(_new(number, flow_id=flow.flow_id) for number in range(2))
    trace: Trace = []
    for member in members:
        graph = NewGraph(flow=flow, members=(member,), is_last=False)
        trace.append(("chunk", told(await side.backend.create_graph([graph]))))
        trace.append(("flow", await side.backend.flows([flow.flow_id])))
        clock.advance(5)
    return trace


async def long_lists(side: Side, clock: VirtualClock, seed: int) -> Trace:
    """Edges that come to lists which are too long to be written again."""
    flow = Flow(flow_id=_FLOW, namespace="default", incomplete=True)
    source, target = (_new(number, flow_id=_FLOW) for number in range(2))
    edges = [
        Edge(
            edge_id=f"00000000-0000-4000-8000-{number:012}",
            flow_id=_FLOW,
            source=source.execution_id,
            target=target.execution_id,
        )
        for number in range(_LONG_LIST + 2)
    ]
    graphs = (
        NewGraph(flow=flow, members=(source, target), edges=(*edges[:-2],), is_last=False),
        NewGraph(flow=flow, members=(), edges=(*edges[-2:],), is_first=False, is_last=False),
    )
    query = EdgeQuery(_FLOW, "flow")
    trace: Trace = []
    for graph in graphs:
        trace.append(("chunk", told(await side.backend.create_graph([graph]))))
        trace.append(("edges", await side.backend.edges([query])))
    return trace


async def documents(side: Side, clock: VirtualClock, seed: int) -> Trace:
    """What comes with records that are due or go on, by the names that are written here."""
    backend, trace = side.backend, Trace()
    await backend.create([_new(1), _new(2)])
    trace.append(("claim", told(await backend.claim([_claim(2)]))))
    active = Guard(frozenset({"active"}))
    suspend = Plan(
        target=f"{_OWN}1",
        rule="suspend",
        guard=active,
        set={"state": "suspended", "next": "resume", "suspension_id": "susp-1"},
        timer=Timer(wake_in=5),
        attempt=PauseAttempt("susp-1"),
        documents={"susp": b"one"},
    )
    await_approval = Plan(
        target=f"{_OWN}2",
        rule="waitpoint",
        guard=active,
        timer=Timer(pending_in=5),
        documents={"wp/a": b"two", "wp/b": b"three"},
    )
    trace.append(("apply", told(await backend.apply([suspend, await_approval]))))
    clock.advance(10)
    trace.append(("due", await backend.due(10)))
    guard = Guard(frozenset({"suspended"}))
    resume = Plan(target=f"{_OWN}1", rule="resume", guard=guard, set={"state": "waiting"})
    trace.append(("resume", told(await backend.apply([resume]))))
    trace.append(("claim", told(await backend.claim([_claim(2)]))))
    return trace


def _taken_away(own: str) -> Plan:
    guard = Guard(frozenset({"active"}))
    changes = {"state": "cancelled"}
    attempt = EndAttempt("ended_cancelled", "was ended")
    return Plan(target=own, rule="cancel", guard=guard, set=changes, attempt=attempt)


def _noted(own: str) -> Plan:
    guard = Guard(frozenset({"active"}))
    return Plan(target=own, rule="note", guard=guard, set={"detail": "noted"})


async def notifications(side: Side, clock: VirtualClock, seed: int) -> Trace:
    """Who is told of what, by the names that are written here."""
    backend, own = side.backend, f"{_OWN}1"
    # Who ends its work itself is told nothing; who loses it is.
    workers = ("worker:pool-1", "worker:pool-2")
    names = ("lane:default:default", f"end:{own}", f"stream:{own}:0", "log", *workers, "config")
    fence = Fence("lease-0", 1, "attempt-0")
    frame = Frame(frame_type="token", payload=b"x")
    acts: tuple[Callable[[], Awaitable[Any]], ...] = (
        lambda: backend.create([_new(1)]),
        lambda: backend.claim([_claim(1)]),
        lambda: backend.create([_new(2)]),
        lambda: backend.claim([msgspec.structs.replace(_claim(1), worker_instance_id="pool-2")]),
        lambda: backend.apply([_taken_away(f"{_OWN}2"), _noted(own)]),
        lambda: backend.append(
            [Append(execution_id=own, attempt_index=0, fence=fence, frames=(frame,))]
        ),
        lambda: backend.apply([complete(own, fence, b"done", "", "op")]),
        lambda: backend.config_put([ConfigPut("lane/x", 0, b"{}")]),
    )
    heard: list[tuple[str, TopicSubscription]] = []
    for name in names:
        subscription = backend.notifier().subscribe(name)
        await subscription.wait_subscribed(5)
        subscription.take()
        heard.append((name, subscription))
    for act in acts:
        await act()
    # Notifications arrive in order, and the configuration is changed last.
    assert await heard[-1][1].wait(_NOTICE_S)
    return [(name, subscription.take()) for name, subscription in heard[:-1]]
