"""The calls of a worker, to an engine in its process or to a server."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from flowfabric.core.journal import JournalEntry
from flowfabric.core.streams import Position, lower_bound
from flowfabric.errors import FlowFabricError
from flowfabric.operations.attempts import Suspend, SuspendOrder, UsageReport
from flowfabric.operations.budgets import Usage
from flowfabric.operations.declaration import Transport
from flowfabric.operations.execution_queries import Ended
from flowfabric.operations.executions import Submission
from flowfabric.operations.nouns import Calls
from flowfabric.operations.streams import FramePage, StoredFrame, StreamRange
from flowfabric.operations.workers import Claim, Ending, Finish

T = TypeVar("T")

_PAGE: Final = 1_000
_OP_BYTES: Final = 64
_REMEMBERED_FLOWS: Final = 4_096


class Reads(Protocol):
    """What a worker reads besides calling operations."""

    async def input(self, execution_id: str) -> bytes:
        """The payload of a claim that came without it."""

    async def ended(self, execution_ids: Sequence[str]) -> list[Ended | None]:
        """How executions ended; None for one that has not."""


class WorkerCalls(Calls):
    def __init__(self, transport: Transport, reads: Reads) -> None:
        super().__init__(transport)
        self.input, self.ended = reads.input, reads.ended
        self._child_flows = ChildFlows(self.children_flow)

    async def read_frames(
        self, execution_id: str, attempt_index: int, asked: StreamRange
    ) -> FramePage:
        """A range of any length, in as many requests as it takes."""
        frames: list[StoredFrame] = []
        left, start = asked.count_limit, asked.start
        while True:
            limit = min(left, _PAGE)
            part = replace(asked, start=start, count_limit=limit)
            page = await self.read_stream(execution_id, attempt_index, part)
            frames += page.frames
            left -= page.count
            if left <= 0 or page.count < limit:
                return replace(page, frames=tuple(frames), count=len(frames))
            last = lower_bound(page.frames[-1].id, "start")
            start = str(Position(last.ms, last.seq + 1))

    async def whole_journal(self, execution_id: str) -> list[JournalEntry]:
        """All entries in order of arrival."""
        page = await self.journal(execution_id, limit=_PAGE)
        entries = page.items
        while page.next_cursor:
            page = await self.journal(execution_id, int(page.next_cursor), _PAGE)
            entries += page.items
        return entries

    async def submit_child(self, claim: Claim, submission: Submission) -> str:
        """Create a child in the parent's flow, or find the one its key stands for; its id."""
        flow_id = claim.flow_id or await self._child_flows.of(claim.execution_id)
        child = replace(
            submission,
            flow_id=flow_id,
            parent_id=claim.execution_id,
            parent_round=claim.round,
        )
        return (await self.submit(child)).execution_id


class ChildFlows:
    """The flows that children belong to, asked for once for each parent: its children are often
    submitted together. A standalone parent first joins a flow of its own."""

    def __init__(self, ask: Callable[[str], Awaitable[str]]) -> None:
        self._ask = ask
        self._known: OrderedDict[str, asyncio.Future[str]] = OrderedDict()

    async def of(self, execution_id: str) -> str:
        asked = self._known.get(execution_id)
        if asked is None or (asked.done() and (asked.cancelled() or asked.exception())):
            asked = self._known[execution_id] = asyncio.ensure_future(self._ask(execution_id))
            if len(self._known) > _REMEMBERED_FLOWS:
                self._known.popitem(last=False)
        # Who gives up does not end it for the others.
        return await asyncio.shield(asked)


# ---- requests under a lease


def fence_of(claim: Claim) -> dict[str, Any]:
    """The members that prove the lease."""
    return {
        "execution_id": claim.execution_id,
        "lease_id": claim.lease_id,
        "lease_epoch": claim.lease_epoch,
        "attempt_id": claim.attempt_id,
    }


def finish_of(claim: Claim, outcome: Ending, steps: tuple[JournalEntry, ...] = ()) -> Finish:
    """Under one lease an attempt ends only once, so the kind of its end is name enough."""
    return Finish(
        execution_id=claim.execution_id,
        lease_id=claim.lease_id,
        lease_epoch=claim.lease_epoch,
        attempt_id=claim.attempt_id,
        op=type(outcome).__name__,
        outcome=outcome,
        steps=steps,
    )


def suspend_of(claim: Claim, order: SuspendOrder) -> Suspend:
    """One suspend, however often it is sent."""
    given = msgspec.structs.asdict(order)
    op = order.op or order.idempotency_key.encode()[:_OP_BYTES].decode(errors="ignore")
    return Suspend(**given | fence_of(claim) | {"op": op or uuid4().hex})


async def spend(calls: WorkerCalls, report: UsageReport) -> Usage:
    """The outcome of one report."""
    (usage,) = await calls.report_usages([report])
    if isinstance(usage, FlowFabricError):
        raise usage
    return usage


def only(answers: Iterable[T | FlowFabricError]) -> T:
    """The answer to a batch of one; its error is raised."""
    (answer,) = all_of(answers)
    return answer


def all_of(answers: Iterable[T | FlowFabricError]) -> list[T]:
    """The answers to a batch; the first error among them is raised."""
    found: list[T] = []
    for answer in answers:
        if isinstance(answer, FlowFabricError):
            raise answer
        found.append(answer)
    return found
