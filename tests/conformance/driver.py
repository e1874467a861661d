"""Short words for what most tests do first: submit, claim, let time pass, reach a state."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from uuid import uuid4

import msgspec
import pytest

from flowfabric.backend.base import Backend
from flowfabric.backend.types import EventFilter, Filter, ListRequest
from flowfabric.core.conditions import signal_set
from flowfabric.core.events import HistoryEntry, LogEntry
from flowfabric.core.ids import compose
from flowfabric.core.journal import JournalEntry
from flowfabric.core.plan import Family, Fence
from flowfabric.core.record import RELEASED, Attempt, Record
from flowfabric.core.rules.attempts import Failure
from flowfabric.duties.result import DutyResult
from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine import Engine
from flowfabric.engine.attempts.claimed import Claimed
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.errors import FlowFabricError
from flowfabric.operations.attempts import SuspendOrder
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import ClaimOrder
from tests.clock import VirtualClock
from tests.conformance.graphs import FlowUnderTest, Graph, Member, create
from tests.moves import act_if_due

LEASE_MS: Final = 30_000
NOWHERE: Final = "{fp:7}:00000000-0000-4000-8000-000000000000"
"""A well-formed id that no execution has."""

PERMANENT: Final = Failure("broken", "permanent")
TRANSIENT: Final = Failure("flaky", "transient")
RETRIES: Final = {"retry_policy": {"max_retries": 3, "backoff": {"type": "fixed", "delay_ms": 500}}}


@contextmanager
def refused(
    error: type[FlowFabricError], detail: str | None = None
) -> Iterator[pytest.ExceptionInfo[FlowFabricError]]:
    """The block raises this very error, with this very detail where one is given."""
    with pytest.raises(error) as caught:
        yield caught
    assert type(caught.value) is error
    if detail is not None:
        assert caught.value.detail == detail


def stranger() -> str:
    """A fresh id of the right form."""
    return str(uuid4())


def guess(execution_id: str) -> LeaseProof:
    """A whole fence that nobody ever held."""
    return LeaseProof(execution_id, stranger(), 7, stranger())


def fenced(held: LeaseProof, **changes: Any) -> LeaseProof:
    """A holding as its worker would send it from another process, with parts replaced."""
    return msgspec.structs.replace(held, **({"record": None} | changes))


def fence(held: LeaseProof) -> Fence:
    return Fence(held.lease_id, held.lease_epoch, held.attempt_id)


def unfenced(execution_id: str, source: str = "") -> LeaseProof:
    return LeaseProof(execution_id, source=source)


class Driver:
    def __init__(self, engine: Engine, clock: VirtualClock, timers: TimerSweep) -> None:
        self.engine = engine
        self.clock = clock
        self.timers = timers

    async def submit(self, **fields: Any) -> str:
        submitted = await self.engine.executions.create(Submission(**({"kind": "work"} | fields)))
        return submitted.execution_id

    async def claim(self, **fields: Any) -> Claimed:
        """Claim one execution that must be there."""
        claimed = await self.claim_all(**fields)
        assert len(claimed) == 1, f"expected one claimed execution, got {len(claimed)}"
        return claimed[0]

    async def claim_all(self, **fields: Any) -> list[Claimed]:
        worker = {"worker_id": "pool", "worker_instance_id": "pool-1", "lanes": ("default",)}
        return await self.engine.claims.claim(ClaimOrder(**(worker | fields)))

    async def started(self, **fields: Any) -> Claimed:
        """A fresh execution, submitted and claimed."""
        await self.submit(**fields)
        lane = {"lanes": (fields["lane"],)} if "lane" in fields else {}
        return await self.claim(**lane)

    async def take(self, execution_id: str, lease_ms: int = LEASE_MS) -> Claimed:
        """Lease this very execution, whatever else waits."""
        return await self.engine.grants.issue_and_claim(execution_id, lease_ms)

    async def graph(self, graph: Graph) -> FlowUnderTest:
        return await create(self.engine, graph)

    async def suspend(self, held: LeaseProof) -> None:
        """Pause an attempt until some signal arrives."""
        await self.engine.suspensions.suspend(held, SuspendOrder(resume_condition=signal_set()))

    # ---- time

    async def sweep(self) -> DutyResult:
        """Act on whatever is due now."""
        return await self.timers.visit()

    async def pass_time(self, ms: int) -> DutyResult:
        self.clock.advance(ms)
        return await self.sweep()

    # ---- what is stored

    async def record(self, execution_id: str) -> Record:
        record, _ = await self.engine.deps.record(execution_id)
        return record

    async def attempts(self, execution_id: str) -> tuple[Attempt, ...]:
        seen = await self.engine.deps.store.read(execution_id, frozenset({"attempts"}))
        assert seen is not None
        return seen.attempts

    async def result(self, execution_id: str) -> bytes | None:
        seen = await self.engine.deps.store.read(execution_id, frozenset({"result"}))
        assert seen is not None
        return seen.result

    async def history(self, execution_id: str) -> tuple[HistoryEntry, ...]:
        seen = await self.engine.deps.store.read(execution_id, frozenset({"history"}))
        assert seen is not None
        return seen.history

    async def journal(self, execution_id: str) -> list[JournalEntry]:
        """The whole journal in order of arrival; empty for an execution nobody knows."""
        backend, after, found = self.engine.deps.store.backend, 0, list[JournalEntry]()
        while True:
            page = await backend.journal_read(execution_id, after, 1_000)
            found += [entry for _, entry in page.rows]
            if not page.more:
                return found
            after = page.rows[-1][0]

    async def events(self, *families: Family) -> list[LogEntry]:
        """Every log entry of these families, oldest first; of all when none is named."""
        return await events_of(self.engine.deps.store.backend, *families)

    async def completions(self) -> list[tuple[str, str]]:
        """(execution, outcome) of every completion so far."""
        entries = await self.events("completion")
        return [(entry.execution_id, entry.details["outcome"]) for entry in entries]

    async def assert_released(self, held: LeaseProof) -> None:
        """The lease is gone; its epoch and the attempt's place stay."""
        record = await self.record(held.execution_id)
        left = {name: getattr(record, name) for name in RELEASED}
        assert left == RELEASED
        assert (record.lease_epoch, record.attempt_index) == (held.lease_epoch, 0)

    async def assert_final(self, held: LeaseProof, state: str, outcome: str) -> None:
        """The execution has just ended this way, and told so once."""
        record, now = await self.record(held.execution_id), self.clock()
        assert (record.state, record.reason, record.detail) == (state, "", "")
        assert (record.completed_at, record.moved_at, record.changed_at) == (now, now, now)
        assert record.purge_at == now + record.retention_ms
        assert (record.due_at, record.wake_at, record.grant_id) == (0, 0, "")
        assert (record.suspension_id, record.waitpoint_id) == ("", "")
        assert await self.completions() == [(held.execution_id, outcome)]
        await self.assert_released(held)

    async def snapshot(self) -> object:
        """Everything the store shows of its executions, lanes and log, for comparing."""
        await self.engine.lanes.drain()
        return await snapshot_of(self.engine.deps.store.backend)

    # ---- states

    async def reach(self, situation: str, **fields: Any) -> LeaseProof:
        """A fresh execution in the named situation, as its last holder (if any) knows it."""
        return await _REACHED[situation](self, fields)

    async def nowhere(self) -> LeaseProof:
        """An execution that does not exist, as a worker that believes in it would name it."""
        return guess(NOWHERE)


async def events_of(backend: Backend, *families: Family) -> list[LogEntry]:
    wanted = EventFilter(families=frozenset(families))
    cursor = await backend.cursor("oldest")
    found: list[LogEntry] = []
    while True:
        page = await backend.events(cursor, wanted, 500)
        found.extend(event.entry for event in page.events)
        if not page.events:
            return found
        cursor = page.cursor


async def snapshot_of(backend: Backend) -> object:
    records: list[Record] = []
    for namespace in ("default", "other"):
        cursor = ""
        while True:
            asked = ListRequest(filter=Filter(namespace=namespace), cursor=cursor, limit=1_000)
            page = await backend.search(asked)
            records.extend(page.records)
            cursor = page.next_cursor
            if not cursor:
                break
    return (
        sorted(records, key=lambda record: record.execution_id),
        await backend.count("default", "default"),
        await events_of(backend),
        await backend.config_list("", "", 1_000),
    )


async def _waiting(driver: Driver, fields: dict[str, Any]) -> LeaseProof:
    return LeaseProof(await driver.submit(**fields))


async def _delayed(driver: Driver, fields: dict[str, Any]) -> LeaseProof:
    return LeaseProof(await driver.submit(delay_until=driver.clock() + 60_000, **fields))


async def _blocked(driver: Driver, fields: dict[str, Any]) -> LeaseProof:
    execution_id = await driver.submit(**fields)
    await driver.engine.scheduling.block(execution_id, "paused_by_operator")
    return LeaseProof(execution_id)


async def _waiting_children(driver: Driver, fields: dict[str, Any]) -> LeaseProof:
    parent = Member(delay_until=driver.clock() + 86_400_000)
    members = {"parent": parent, "child": Member(**fields)}
    flow = await driver.graph(Graph(arrows=[("parent", "child")], members=members))
    return LeaseProof(flow.ids["child"])


async def _active(driver: Driver, fields: dict[str, Any]) -> LeaseProof:
    return (await driver.take(await driver.submit(**fields))).proof


async def _unmarked(driver: Driver, fields: dict[str, Any]) -> LeaseProof:
    """Past its lease, before anybody noticed."""
    held = (await driver.take(await driver.submit(**fields), 1_000)).proof
    driver.clock.advance(1_000)
    return held


async def _lease_expired(driver: Driver, fields: dict[str, Any]) -> LeaseProof:
    held = await _unmarked(driver, fields)
    await driver.engine.leases.mark_expired_if_due(held.execution_id)
    return held


async def _lease_revoked(driver: Driver, fields: dict[str, Any]) -> LeaseProof:
    held = await _active(driver, fields)
    await driver.engine.leases.revoke_lease(held.execution_id)
    return held


async def _suspended(driver: Driver, fields: dict[str, Any]) -> LeaseProof:
    held = await _active(driver, fields)
    await driver.suspend(held)
    return held


async def _backoff(driver: Driver, fields: dict[str, Any]) -> LeaseProof:
    policy = RETRIES | dict(fields.get("policy", {}))
    held = await _active(driver, fields | {"policy": policy})
    await driver.engine.outcomes.fail(held, TRANSIENT)
    return held


async def _paused(driver: Driver, fields: dict[str, Any]) -> LeaseProof:
    """Delayed by its own worker."""
    held = await _active(driver, fields)
    await driver.engine.outcomes.delay(held, for_ms=60_000)
    return held


async def _handed_back(driver: Driver, fields: dict[str, Any]) -> LeaseProof:
    held = await _active(driver, fields)
    await driver.engine.outcomes.delay(held, for_ms=0)
    return held


async def _parked(driver: Driver, fields: dict[str, Any]) -> LeaseProof:
    """A parent that waits for a child it named."""
    child = Member(delay_until=driver.clock() + 86_400_000)
    flow = await driver.graph(Graph(members={"parent": Member(**fields), "child": child}))
    held = (await flow.take("parent")).proof
    await driver.engine.outcomes.wait_for_children(held, (flow.ids["child"],))
    return held


async def _completed(driver: Driver, fields: dict[str, Any]) -> LeaseProof:
    held = await _active(driver, fields)
    await driver.engine.outcomes.complete(held, b"done")
    return held


async def _failed(driver: Driver, fields: dict[str, Any]) -> LeaseProof:
    held = await _active(driver, fields)
    await driver.engine.outcomes.fail(held, PERMANENT)
    return held


async def _cancelled(driver: Driver, fields: dict[str, Any]) -> LeaseProof:
    held = await _active(driver, fields)
    await driver.engine.outcomes.cancel(unfenced(held.execution_id), "enough")
    return held


async def _expired(driver: Driver, fields: dict[str, Any]) -> LeaseProof:
    held = await _active(driver, {"deadline_at": driver.clock()} | fields)
    await act_if_due(driver.engine, held.execution_id)
    return held


async def _skipped(driver: Driver, fields: dict[str, Any]) -> LeaseProof:
    graph = Graph(arrows=[("parent", "child")], members={"child": Member(**fields)})
    flow = await driver.graph(graph)
    await flow.fail("parent")
    return LeaseProof(flow.ids["child"])


_REACHED: Final[dict[str, Callable[[Driver, dict[str, Any]], Awaitable[LeaseProof]]]] = {
    "waiting": _waiting,
    "delayed": _delayed,
    "blocked": _blocked,
    "waiting_children": _waiting_children,
    "active": _active,
    "unmarked": _unmarked,
    "lease_expired": _lease_expired,
    "lease_revoked": _lease_revoked,
    "suspended": _suspended,
    "backoff": _backoff,
    "paused": _paused,
    "handed_back": _handed_back,
    "parked": _parked,
    "completed": _completed,
    "failed": _failed,
    "cancelled": _cancelled,
    "expired": _expired,
    "skipped": _skipped,
}
RUNNABLE: Final = (
    "waiting",
    "delayed",
    "blocked",
    "waiting_children",
    "backoff",
    "paused",
    "handed_back",
    "parked",
)
HELD: Final = ("active", "unmarked", "lease_expired", "lease_revoked")
LIVE: Final = (*RUNNABLE, *HELD, "suspended")
FINAL: Final = ("completed", "failed", "cancelled", "expired", "skipped")
EVERYWHERE: Final = (*LIVE, *FINAL)


def elsewhere(execution_id: str) -> str:
    """The same uuid in another partition."""
    partition, _, uuid = execution_id.removeprefix("{fp:").partition("}:")
    return compose((int(partition) + 1) % 256, uuid)
