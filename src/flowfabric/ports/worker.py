"""The worker's port: everything a worker asks of the engine, in its process or over HTTP.

An item's own error comes as its answer; what is wrong with a whole call is raised.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from flowfabric.core.journal import JournalEntry
from flowfabric.core.suspend_outcomes import Issued
from flowfabric.core.suspensions import ReceivedSignal
from flowfabric.core.upstreams import Upstream
from flowfabric.engine.claims import ClaimOrder, Resumption
from flowfabric.engine.frames import NewFrame
from flowfabric.engine.grants import Grant, GrantKind
from flowfabric.engine.journals import Kept
from flowfabric.engine.suspend_orders import SuspendOrder
from flowfabric.engine.workers import Registration
from flowfabric.errors import FlowFabricError, Nondeterminism
from flowfabric.operations.budgets import Budgets, Usage
from flowfabric.operations.declaration import AsyncCalls
from flowfabric.operations.ends import Ended
from flowfabric.operations.executions import Executions, ResumeSignals, Submission
from flowfabric.operations.streams import FramePage, StreamRange, Tail

ClaimedAs = Literal["initial", "retry", "reclaim", "replay", "resumed"]


class Claim(msgspec.Struct, frozen=True, gc=False, kw_only=True, repr_omit_defaults=True):
    """One execution under a lease, with all its holder needs. Every call about it is given back
    the whole claim; `origin` is the adapter's own and nobody else's business."""

    execution_id: str
    namespace: str
    lane_id: str
    execution_kind: str
    attempt_index: int
    attempt_id: str
    attempt_type: ClaimedAs
    lease_id: str
    lease_epoch: int
    lease_expires_at: int
    # The store's clock at the moment of the claim.
    claimed_at: int
    created_at: int = 0
    priority: int = 0
    flow_id: str = ""
    input: bytes | None = None
    input_deferred: bool = False
    payload_encoding: str = ""
    tags: Mapping[str, str] = {}
    # The frozen policy as JSON text.
    policy: str = ""
    retry_count: int = 0
    replay_count: int = 0
    journal_length: int = 0
    upstreams: tuple[Upstream, ...] = ()
    resumed_by: Resumption | None = None
    origin: Any = None

    # Whoever knows the lease id could act for the worker, and the input may be personal.
    def __rich_repr__(self) -> list[tuple[str, object]]:
        shown = ("execution_id", "execution_kind", "lane_id", "attempt_index", "attempt_type")
        return [(name, getattr(self, name)) for name in shown]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"Claim({fields})"


class Complete(msgspec.Struct, frozen=True, gc=False, tag_field="outcome", tag="complete"):
    result: bytes | None = None
    encoding: str = ""


class Fail(msgspec.Struct, frozen=True, gc=False, tag_field="outcome", tag="fail"):
    """The attempt failed; `retryable` False forbids another, whatever the policy says."""

    reason: str
    category: str = "handler_error"
    retryable: bool | None = None


class Cancel(msgspec.Struct, frozen=True, tag_field="outcome", tag="cancel"):
    reason: str = ""


class Delay(msgspec.Struct, frozen=True, tag_field="outcome", tag="delay"):
    """Go on later; `for_ms` 0 hands the work back at once, to whoever claims next."""

    until: int | None = None
    for_ms: int | None = None


class WaitChildren(msgspec.Struct, frozen=True, tag_field="outcome", tag="wait_children"):
    children: tuple[str, ...] = ()


Outcome = Complete | Fail | Cancel | Delay | WaitChildren


class Finish(msgspec.Struct, frozen=True, gc=False):
    """How one attempt ends or pauses. `op` names this very decision, so that a repeat of the call
    is answered as the first was; empty leaves it to the kind of the outcome."""

    claim: Claim
    outcome: Outcome
    op: str = ""


class Finished(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What was made of the execution: its public state, and when and as what it goes on."""

    state: str
    delay_until: int = 0
    next_attempt_index: int = 0
    replayed: bool = False


class FinishReply(msgspec.Struct, frozen=True):
    """One answer per finish, in order, and the work claimed in the same call."""

    items: list[Finished | FlowFabricError]
    claimed: list[Claim] = []


class Renewal(msgspec.Struct, frozen=True):
    """A lease to keep, and the progress to tell with it."""

    claim: Claim
    progress_pct: int | None = None
    progress_message: str | None = None


class Suspended(msgspec.Struct, frozen=True):
    """The lease is given up; whoever is to signal needs a waitpoint and its token."""

    suspension_id: str
    waitpoints: tuple[Issued, ...]


class Satisfied(msgspec.Struct, frozen=True):
    """The condition had been met before: the lease is kept and the work goes on."""

    suspension_id: str
    signals: tuple[ReceivedSignal, ...]


class Appended(msgspec.Struct, frozen=True):
    ids: tuple[str, ...]
    frame_count: int
    summary_version: int | None = None


class SpendReport(msgspec.Struct, frozen=True):
    """What was spent of a budget; a repeat with the same key counts once."""

    budget_id: str
    amounts: Mapping[str, int]
    dedup_key: str = ""


class Granted(msgspec.Struct, frozen=True, kw_only=True):
    """A grant to be used by the worker it was made for, and the lease wanted in its place."""

    execution_id: str
    grant_key: str
    kind: GrantKind
    worker_id: str
    worker_instance_id: str
    lease_ms: int

    # Whoever knows the key could use the grant.
    def __repr__(self) -> str:
        return f"Granted({self.execution_id!r}, kind={self.kind!r})"


class Limits(AsyncCalls, Budgets):
    """Budgets and quotas, whoever is asked."""


class ExecutionCalls(AsyncCalls, Executions):
    """Executions, whoever is asked."""


class WorkerPort(Protocol):
    limits: Limits

    async def register(self, worker: Registration) -> bool:
        """Say that this worker lives; an instance that belongs to another worker is refused.
        Whether the instance is new: False when it was registered and still counts as alive."""

    async def leave(self, worker: Registration, reason: str = "") -> None:
        """Take the worker off the list. Its leases are untouched."""

    async def claim(self, order: ClaimOrder) -> list[Claim]:
        """Lease up to `n`; with nothing there wait as long as the order says, then answer []."""

    async def grant(self, order: ClaimOrder) -> Grant | None:
        """Reserve the best waiting work for the length of the order's lease, without leasing it."""

    async def claim_granted(self, granted: Granted) -> Claim:
        """Lease what a grant reserves; it can be used once."""

    async def renew(
        self, worker: Registration, renewals: Sequence[Renewal], lease_ms: int
    ) -> list[int | FlowFabricError]:
        """Keep all leases and tell progress: per lease when it ends now, or why it is lost. It is
        the worker's heartbeat as well, and registers it again if it was forgotten."""

    async def finish(self, finishes: Sequence[Finish], order: ClaimOrder | None) -> FinishReply:
        """End or pause attempts and, with an order, claim in the same call without waiting."""

    async def suspend(self, claim: Claim, order: SuspendOrder) -> Suspended | Satisfied:
        """Give the lease up and wait for signals, unless they came before."""

    async def waitpoint(self, claim: Claim, key: str, expires_ms: int) -> Issued:
        """An address and token for signals that may come before the suspend that awaits them."""

    async def resume_signals(self, execution_id: str) -> ResumeSignals:
        """What ended the last suspension, whichever attempt it was of."""

    async def append(self, claim: Claim, frames: Sequence[NewFrame]) -> Appended:
        """Put frames out, all or none; a frame's number makes a repeat harmless."""

    async def read(self, execution_id: str, attempt_index: int, asked: StreamRange) -> FramePage:
        """A range of an attempt's frames, without waiting."""

    async def tail(self, execution_id: str, attempt_index: int, asked: Tail) -> FramePage:
        """Frames behind a position; with none there, those that come in time."""

    async def journal(self, execution_id: str) -> list[JournalEntry]:
        """The whole journal in order of arrival."""

    async def record(
        self, claim: Claim, entries: Sequence[JournalEntry]
    ) -> list[Kept | Nondeterminism]:
        """Add to the journal; an entry that is there already is answered, not replaced."""

    async def spend(self, claim: Claim, report: SpendReport) -> Usage: ...

    async def input(self, execution_id: str) -> bytes:
        """The payload of a claim that came without it."""

    async def upstreams(self, execution_id: str) -> tuple[Upstream, ...]:
        """Who feeds a flow member, with the results of the named inputs."""

    async def submit_child(self, claim: Claim, submission: Submission) -> str:
        """Create a child in the parent's flow, or find the one its key stands for; its id."""

    async def ended(self, execution_ids: Sequence[str]) -> list[Ended | None]:
        """How executions ended; None for one that has not."""
