"""Operations of a running attempt: suspend, create waitpoints, append frames and steps, report
usage."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Final, Literal

import msgspec

from flowfabric import errors
from flowfabric.core.condition_checks import Binding
from flowfabric.core.conditions import Condition
from flowfabric.core.journal import JournalEntry
from flowfabric.core.suspend_outcomes import Issued
from flowfabric.core.suspensions import ReceivedSignal, ResumePolicy
from flowfabric.operations.budgets import Amounts, Usage
from flowfabric.operations.declaration import WORKER, operation
from flowfabric.operations.types import (
    MAX_BATCH_ITEMS,
    Answer,
    Batch,
    BudgetId,
    FenceId,
    Free,
    Outcome,
    Part,
    Timestamp,
)
from flowfabric.operations.workers import Fence, HeldExecution, Op

Mode = Literal["durable", "summary", "best_effort"]
_LEASE_FAULTS: Final = (
    errors.ExecutionNotFound,
    errors.ExecutionNotActive,
    errors.StaleLease,
    errors.LeaseExpired,
    errors.LeaseRevoked,
    errors.FenceRequired,
    errors.PartialFenceTriple,
)
_ITEMS: Final = msgspec.Meta(min_length=1, max_length=MAX_BATCH_ITEMS)
_OF_ITS_EXECUTION: Final = Free("a part of its execution")


# ---- suspensions


class SuspendOrder(Part, frozen=True, kw_only=True):
    """What to wait for, where, and for how long. Ids that are not given are made.

    Without `waitpoints` there is one, with the key the condition names. `idempotency_key` is looked
    up before anything else.
    """

    resume_condition: Annotated[Condition, _OF_ITS_EXECUTION]
    # The primary one first.
    waitpoints: Annotated[tuple[Binding, ...] | None, _OF_ITS_EXECUTION] = None
    suspension_id: Annotated[str, _OF_ITS_EXECUTION] = ""
    reason_code: str = "waiting_for_signal"
    requested_by: str = "worker"
    timeout_at: Timestamp | None = None
    timeout_ms: int | None = None
    timeout_behavior: str = ""
    resume_policy: ResumePolicy = ResumePolicy()
    # Whether signals in the mailbox count, those that lie there already first.
    mailbox: bool = False
    # Members of its flow; the end of the first of them ends the suspension too.
    children: Annotated[tuple[HeldExecution, ...], _OF_ITS_EXECUTION] = ()
    continuation_metadata_pointer: str = ""
    idempotency_key: str = ""
    op: str = ""
    attempt_index: int | None = None


class Suspend(SuspendOrder, frozen=True, kw_only=True):
    """A suspend under a lease."""

    execution_id: HeldExecution
    lease_id: FenceId = ""
    lease_epoch: int = 0
    attempt_id: FenceId = ""
    op: Op


class Suspended(Outcome, frozen=True):
    """The lease is released; a sender of signals needs a waitpoint and its token."""

    suspension_id: str
    waitpoints: tuple[Issued, ...]


class Satisfied(Outcome, frozen=True, tag="already_satisfied"):
    """The condition was met before the suspend: the lease is kept and the attempt continues."""

    suspension_id: str
    waitpoints: tuple[Issued, ...]
    signals: tuple[ReceivedSignal, ...]


class NewWaitpoint(Fence, frozen=True, kw_only=True):
    """A waitpoint to create before suspending on it; without a key or an id it gets one. With the
    id of a waitpoint that is there, that one is answered again, and nothing is created."""

    expires_in_ms: int
    waitpoint_key: str = ""
    waitpoint_id: Annotated[str, _OF_ITS_EXECUTION] = ""


class WaitpointIssued(Issued, frozen=True):
    status: ClassVar[int] = 201


# ---- output


class NewFrame(Part, frozen=True, kw_only=True):
    """A frame of output. `seq` is the writer's own number: one already seen appends nothing, and 0
    is none. `patch_kind` is of a summary frame; `ttl_ms` and `live_maxlen` (how many of them to
    keep, 0 leaves it to the engine) are of a best-effort frame."""

    frame_type: str
    payload: bytes
    ts: Timestamp = 0
    encoding: str = "utf8"
    correlation_id: Annotated[str, Free("a label; nothing is looked up by it")] = ""
    source: str = "worker"
    mode: Mode = "durable"
    ttl_ms: int = 0
    patch_kind: str = ""
    seq: int = 0
    live_maxlen: int = 0


class Output(Fence, frozen=True, kw_only=True):
    """Frames of one attempt: all are appended, or none."""

    attempt_index: int
    frames: Sequence[NewFrame]

    @property
    def is_numbered(self) -> bool:
        """Whether a repeat appends nothing more."""
        return all(one.seq for one in self.frames)


class Appended(Answer, frozen=True):
    """The ids given to the frames, and how many the stream has taken in its life; the version of
    the summary if summary frames were among them."""

    ids: tuple[str, ...]
    frame_count: int
    summary_version: int | None = None


# ---- the journal


class NewEntry(Fence, frozen=True, kw_only=True):
    """A step to record. `take` has the numbers of signals that leave the mailbox with it."""

    entry: JournalEntry
    take: tuple[int, ...] = ()


class Kept(Answer, frozen=True):
    """Whether this call's outcome of a step counts; if not, the one that was there before."""

    stored: bool
    outcome: bytes | None = None


# ---- progress


class Progress(Fence, frozen=True, kw_only=True):
    """How far an attempt is; what is left out stays as it was told before."""

    progress_pct: int | None = None
    progress_message: str | None = None


class ProgressReported(Outcome, frozen=True, tag="reported"):
    pass


# ---- children


class CancelChildren(Fence, frozen=True, kw_only=True):
    """Children that their parent gives up. Those that have ended are left alone."""

    children: Annotated[tuple[HeldExecution, ...], msgspec.Meta(min_length=1, max_length=1_000)]
    reason: str = ""


class ChildrenCancelled(Outcome, frozen=True, tag="cancelled"):
    count: int


# ---- usage


class UsageReport(Fence, frozen=True, kw_only=True):
    """What an attempt spent of a budget; a repeat with the same key counts once."""

    budget_id: BudgetId
    dimensions: Amounts
    dedup_key: str = ""


class HeldAttempts:
    @operation(
        "POST /v1/worker/suspend",
        WORKER,
        errors.InvalidInput,
        errors.WaitpointNotFound,
        errors.WaitpointNotPending,
        errors.PendingWaitpointExpired,
        *_LEASE_FAULTS,
        size="batch",
        no_store=True,
    )
    async def suspend(self, order: Suspend) -> Suspended | Satisfied:
        """Release the lease and wait for signals, unless they have come already."""

    @operation(
        "POST /v1/worker/waitpoints",
        WORKER,
        errors.InvalidInput,
        *_LEASE_FAULTS,
        repeat=("waitpoint_id",),
        no_store=True,
    )
    async def create_waitpoint(self, new: NewWaitpoint) -> WaitpointIssued:
        """Create a waitpoint before suspending on it."""

    @operation(
        "POST /v1/worker/frames", WORKER, errors.InvalidInput, size="batch", repeat=("is_numbered",)
    )
    async def append_frames(self, items: Batch[Output]) -> list[Appended | errors.FlowFabricError]:
        """Append output of attempts; the frames of one item are all appended or none."""

    @operation("POST /v1/worker/journal", WORKER, errors.InvalidInput, size="batch")
    async def append_journal(self, items: Batch[NewEntry]) -> list[Kept | errors.FlowFabricError]:
        """Record steps of attempts; for a step recorded before, the answer has its outcome."""

    @operation("POST /v1/worker/progress", WORKER, errors.InvalidInput, *_LEASE_FAULTS)
    async def report_progress(self, new: Progress) -> ProgressReported:
        """Report how far an attempt is."""

    @operation(
        "POST /v1/worker/children/cancel",
        WORKER,
        errors.InvalidInput,
        errors.ExecutionNotInFlow,
        *_LEASE_FAULTS,
    )
    async def cancel_children(self, order: CancelChildren) -> ChildrenCancelled:
        """Cancel children of the execution that is held; the answer is how many were live."""

    @operation("POST /v1/worker/usage", WORKER, errors.InvalidInput, repeat=("dedup_key",))
    async def report_usages(
        self, items: Batch[UsageReport]
    ) -> list[Usage | errors.FlowFabricError]:
        """Report what attempts spent; a breach is an outcome, not an error."""
