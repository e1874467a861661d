"""Explain: every reason why an execution is not running, from one look at it and around it."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import zip_longest
from typing import Final

import msgspec

from flowfabric.backend.types import Filter, ListRequest, Seen, With, Worker
from flowfabric.core.capabilities import missing
from flowfabric.core.checks import is_parked
from flowfabric.core.conditions import matchers_of, required_names
from flowfabric.core.documents import SUSPENSION
from flowfabric.core.facets import Scene, blocking_detail, facets
from flowfabric.core.ids import parse_execution_id
from flowfabric.core.limits.asks import (
    Denied,
    GateSeen,
    KeyFull,
    QuotaFull,
    RateExceeded,
    detail_of,
    reason_of,
)
from flowfabric.core.limits.budgets import Chain, closed
from flowfabric.core.limits.gates import key_gate, quota_gate
from flowfabric.core.record import Record, counting_instants
from flowfabric.core.states import FINAL, LIMIT_REASONS, not_open, serves_claims
from flowfabric.core.suspensions import Suspension, suspension_in
from flowfabric.engine.deps import Deps
from flowfabric.engine.executions.children import with_children
from flowfabric.engine.lanes import Lanes
from flowfabric.engine.limits.slots import gates_of
from flowfabric.engine.workers import Workers, knows
from flowfabric.errors import FlowFabricError
from flowfabric.operations.declaration import implements
from flowfabric.operations.execution_queries import (
    Blocker,
    Code,
    ExecutionQueries,
    Explanation,
    LastFailure,
    NextTimer,
    QueuePlace,
)

_MOST_EDGES: Final = 20
_MOST_KINDS: Final = 20


class Around(msgspec.Struct, frozen=True, kw_only=True):
    """What lies around an execution, each read once. Limits that could not be read are errors."""

    seen: Seen
    lane_state: str = "active"
    workers: Sequence[Worker] = ()
    budgets: Sequence[Chain] | FlowFabricError = ()
    gates: Mapping[str, GateSeen | None] | FlowFabricError = msgspec.field(default_factory=dict)

    @property
    def record(self) -> Record:
        return self.seen.record


def blockers_of(around: Around) -> Iterator[Blocker]:
    """Every reason, the record's own first."""
    record = around.record
    if record.state in FINAL:
        yield Blocker("terminal", _ended(record), since=record.completed_at)
    elif record.state == "delayed":
        yield _delay(record)
    elif record.state == "suspended":
        yield _suspended(around)
    elif record.state == "blocked":
        yield from _blocked(around)
    elif record.state in ("waiting", "lost"):
        yield from _claimable(around)


def _ended(record: Record) -> str:
    why = record.failure_reason or record.cancellation_reason
    return f"{record.state}: {why}" if why else record.state


_DELAYS: Final[dict[str, Code]] = {
    "delay": "delay",
    "retry_backoff": "retry_backoff",
    "resume_delay": "resume_delay",
}


def _delay(record: Record) -> Blocker:
    code = _DELAYS.get(record.reason, "delay")
    return Blocker(code, blocking_detail(record), record.moved_at, record.wake_at)


def _suspended(around: Around) -> Blocker:
    record = around.record
    if is_parked(record):
        detail = f"{record.detail}; deploy code that makes the recorded call and resume, or replay"
        return Blocker("suspended", detail, record.moved_at)
    suspension = suspension_in(around.seen.documents)
    waiting = f"waits for {record.reason}"
    if suspension is not None:
        names = _unmet(suspension)
        missing_names = f": {', '.join(names)}" if names else ""
        waiting = f"{suspension.reason_code}{missing_names}"
    detail = f"{waiting} at waitpoint {record.waitpoint_id}"
    return Blocker("suspended", detail, record.moved_at, record.wake_at or None)


def _unmet(suspension: Suspension) -> tuple[str, ...]:
    """The names of signals that are still missing."""
    condition = suspension.resume_condition
    if condition.condition_type != "signal_set":
        return required_names(condition)
    filled = suspension.evaluation.filled
    pairs = zip_longest(matchers_of(condition), filled, fillvalue="")
    return tuple(name or "any signal" for name, filler in pairs if not filler)


_FIRST_RESERVATIONS: Final[dict[str, Code]] = {
    "operator": "operator_hold",
    "flow_cancel": "operator_hold",
    "lane_state": "lane_state",
}


def _blocked(around: Around) -> Iterator[Blocker]:
    record = around.record
    since, until = record.moved_at, record.wake_at or None
    if record.reason == "dependencies":
        yield Blocker("dependencies", _dependencies(around.seen), since, until)
    elif record.reason == "route":
        yield from _unserved(around)
        yield Blocker("missing_capabilities", record.detail or "held for a worker", since, until)
    elif record.reason in LIMIT_REASONS:
        code: Code = "concurrency_key" if record.reason == "concurrency" else _limit(record.reason)
        yield Blocker(code, record.detail, since, until)
        yield from (one for one in limits_of(around) if one.detail != record.detail)
    else:
        code = _FIRST_RESERVATIONS.get(record.reason, "operator_hold")
        yield Blocker(code, record.detail or f"held: {record.reason}", since)


def _limit(reason: str) -> Code:
    return "budget" if reason == "budget" else "quota"


def _dependencies(seen: Seen) -> str:
    unmet = [edge.source for edge in seen.incoming if edge.state in ("staged", "open")]
    named = ", ".join(unmet[:_MOST_EDGES])
    more = f" and {len(unmet) - _MOST_EDGES} more" if len(unmet) > _MOST_EDGES else ""
    return f"{len(unmet)} unmet: {named}{more}" if unmet else "waits for its dependencies"


def _claimable(around: Around) -> Iterator[Blocker]:
    record, now = around.record, around.seen.now
    if record.state == "lost":
        yield Blocker("lease_lost", record.detail, record.lost_at)
    if not serves_claims(around.lane_state):
        yield Blocker("lane_state", not_open(record.lane, around.lane_state))
    if record.grant_until > now:
        note = f": {record.grant_note}" if record.grant_note else ""
        holder = f"{record.grant_worker}/{record.grant_instance}"
        yield Blocker("reserved", f"reserved for {holder}{note}", until=record.grant_until)
    yield from _unserved(around)
    yield from limits_of(around)


def _unserved(around: Around) -> Iterator[Blocker]:
    record = around.record
    here = [worker for worker in around.workers if record.lane in worker.lanes]
    if not here:
        yield Blocker("no_worker", f"no live worker of lane {record.lane}")
        return
    knowing = [worker for worker in here if knows(worker, record.kind)]
    if not knowing:
        yield Blocker("missing_kind", _unknown(record, here))
        return
    lacking = {one.worker_instance_id: _missing(record, one) for one in knowing}
    nearest = min(lacking, key=lambda name: (len(lacking[name]), name))
    if lacking[nearest]:
        needs = ", ".join(record.required_capabilities)
        lacks = ", ".join(lacking[nearest])
        detail = f"needs {needs}; the nearest worker {nearest} lacks {lacks}"
        yield Blocker("missing_capabilities", detail)


def _unknown(record: Record, here: Sequence[Worker]) -> str:
    kinds = sorted({kind for worker in here for kind in worker.kinds or ()})
    near = get_close_matches(record.kind, kinds, 1)
    listed = ", ".join(kinds[:_MOST_KINDS]) + (", …" if len(kinds) > _MOST_KINDS else "")
    meant = f"; did you mean {near[0]}?" if near else ""
    workers = "1 worker" if len(here) == 1 else f"{len(here)} workers"
    known = f"({workers}; kinds {listed or 'none'})"
    return f"no live worker of lane {record.lane} knows kind {record.kind} {known}{meant}"


def _missing(record: Record, worker: Worker) -> tuple[str, ...]:
    return tuple(missing(record.required_capabilities, worker.capabilities))


def limits_of(around: Around) -> Iterator[Blocker]:
    """The limits that would turn the execution away now, each with its numbers."""
    record = around.record
    if isinstance(around.budgets, FlowFabricError):
        yield Blocker("budget", f"cannot be read: {around.budgets}")
    else:
        for chain in around.budgets:
            shut = closed(chain)
            if shut is not None:
                yield Blocker("budget", detail_of(shut))
    if isinstance(around.gates, FlowFabricError):
        yield Blocker("quota", f"cannot be read: {around.gates}")
        return
    for denied in _denials(record, around.gates):
        code: Code = "concurrency_key" if reason_of(denied) == "concurrency" else "quota"
        wait = denied.retry_after_ms if isinstance(denied, RateExceeded) else 0
        yield Blocker(code, detail_of(denied, wait), until=around.seen.now + wait if wait else None)


def _denials(record: Record, gates: Mapping[str, GateSeen | None]) -> Iterator[Denied]:
    for quota_id in record.quota_ids:
        seen = gates.get(quota_gate(quota_id))
        quota = seen.gate.quota if seen else None
        if seen is None or quota is None:
            continue
        if record.next != "resume" and 0 < quota.max_requests_per_window <= seen.gate.entries:
            wait = max(0, seen.oldest_at + quota.window_ms - seen.now)
            limit, seconds = quota.max_requests_per_window, quota.window_seconds
            yield RateExceeded(quota_id, limit, seconds, wait)
        elif 0 < quota.max_concurrent <= seen.gate.slots:
            yield QuotaFull(quota_id, quota.max_concurrent)
    seen = gates.get(key_gate(record.namespace, record.concurrency_key))
    if record.concurrency_key and seen and seen.gate.slots >= record.concurrency_limit:
        yield KeyFull(record.concurrency_key, record.concurrency_limit)


_TIMERS: Final = {
    "lease_until": "lease_expiry",
    "attempt_until": "attempt_timeout",
    "deadline_at": "execution_deadline",
    "grant_until": "grant_expiry",
    "pending_until": "pending_wp_expiry",
}
_WAKES: Final = {"delayed": "delayed_promoter", "suspended": "suspension_timeout"}


def next_timer(record: Record) -> NextTimer | None:
    """The earliest of a record's instants, by the name of the duty that acts on it."""
    for name in counting_instants(record.state):
        if record.due_at and getattr(record, name) == record.due_at:
            what = _TIMERS.get(name) or _WAKES.get(record.state, "unblock")
            return NextTimer(what, record.due_at)
    return None


_WITH_GROUP: Final = frozenset[With]({"group"})
_MOST_AHEAD: Final = 200
# States in which somebody has yet to claim the execution.
_UNCLAIMED: Final = frozenset({"waiting", "lost", "blocked"})


class Explanations:
    def __init__(self, deps: Deps, lanes: Lanes, workers: Workers) -> None:
        self._deps = deps
        self._lanes = lanes
        self._workers = workers

    @implements(ExecutionQueries.explain)
    async def explain(self, execution_id: str) -> Explanation:
        """Why it is not running: its state, its lane, its workers, its limits, all at once."""
        parse_execution_id(execution_id, self._deps.counts)
        seen = await self._deps.seen(execution_id, _WITH_GROUP, (SUSPENSION,))
        around = await self._look_around(seen)
        record = seen.record
        blockers = tuple(blockers_of(around))
        explained = Explanation(
            execution_id=execution_id,
            public_state=facets(record).public_state,
            flow_id=record.flow_id,
            parent_id=record.parent_id,
            state_vector=facets(record, _scene(around)),
            running=record.state == "active",
            blockers=blockers,
            queue=await self._queue(around) if record.state == "waiting" else None,
            next_timer=next_timer(record),
            last_failure=_last_failure(record),
            attempts=record.attempt_count,
            hints=tuple(dict.fromkeys(_hints(record, blockers))),
        )
        return await with_children(self._deps, explained)

    async def _look_around(self, seen: Seen) -> Around:
        record = seen.record
        if record.state not in _UNCLAIMED:
            return Around(seen=seen)
        lane, workers, budgets, gates = await asyncio.gather(
            self._lanes.look_up(record.namespace, record.lane),
            self._workers.live(record.namespace),
            self._budgets(record),
            self._gates(record),
        )
        return Around(
            seen=seen, lane_state=lane.state, workers=workers, budgets=budgets, gates=gates
        )

    async def _budgets(self, record: Record) -> Sequence[Chain] | FlowFabricError:
        if not record.budget_ids:
            return ()
        try:
            return await self._deps.store.backend.budgets(record.budget_ids)
        except FlowFabricError as fault:
            return fault

    async def _gates(self, record: Record) -> dict[str, GateSeen | None] | FlowFabricError:
        names = gates_of(record)
        if not names:
            return {}
        try:
            found = await self._deps.store.backend.gates(names)
        except FlowFabricError as fault:
            return fault
        return dict(zip(names, found, strict=True))

    async def _queue(self, around: Around) -> QueuePlace:
        record = around.record
        wanted = Filter(namespace=record.namespace, lane=record.lane, state="waiting")
        request = ListRequest(filter=wanted, order="view", limit=_MOST_AHEAD)
        queued = (await self._deps.store.backend.search(request)).records
        place = (record.rank, record.execution_id)
        ahead = [
            one
            for one in queued
            if one.req_set == record.req_set and (one.rank, one.execution_id) < place
        ]
        oldest = min((one.created_at for one in queued), default=around.seen.now)
        here = _of_lane(around)
        return QueuePlace(
            lane_id=record.lane,
            ahead=len(ahead),
            oldest_waiting_ms=max(0, around.seen.now - oldest),
            live_workers=len(here),
            capable_workers=sum(_is_capable(record, worker) for worker in here),
        )


def _of_lane(around: Around) -> list[Worker]:
    return [worker for worker in around.workers if around.record.lane in worker.lanes]


def _is_capable(record: Record, worker: Worker) -> bool:
    return knows(worker, record.kind) and not missing(
        record.required_capabilities, worker.capabilities
    )


def _scene(around: Around) -> Scene:
    served = any(_is_capable(around.record, worker) for worker in _of_lane(around))
    return Scene(around.lane_state, served)


def _last_failure(record: Record) -> LastFailure | None:
    reason = record.failure_reason or record.retry_reason
    return LastFailure(reason, record.failure_category) if reason else None


def _hints(record: Record, blockers: Sequence[Blocker]) -> list[str]:
    hints: dict[str, str] = {
        "lane_state": f"set lane {record.lane} active again",
        "no_worker": f"start a worker of namespace {record.namespace} on lane {record.lane}",
        "missing_capabilities": "start a worker that offers what is missing",
        "missing_kind": f"start a worker that has a task or handler for kind {record.kind}",
        "budget": "reset the budget, release what was spent, or raise its limit",
        "quota": "wait for the window or a free slot, or raise the quota",
        "concurrency_key": "wait for a running execution of this key to end",
        "operator_hold": "release it",
        "suspended": "send the missing signal, or resume it",
        "lease_lost": "the next claim of the lane takes it over",
    }
    if record.state in FINAL and record.state != "completed":
        return ["replay it"]
    return [hints[blocker.code] for blocker in blockers if blocker.code in hints]
