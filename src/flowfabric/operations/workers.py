"""Operations of workers: register, claim, renew, finish. The error of one item is its answer; an
error of the whole call is raised."""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec

from flowfabric import errors
from flowfabric.core.graph import Upstream
from flowfabric.core.journal import JournalEntry
from flowfabric.core.lease import GrantKind
from flowfabric.core.queues import MOST_KINDS
from flowfabric.core.rules.attempts import Failure
from flowfabric.core.suspensions import How, ReceivedSignal
from flowfabric.operations.declaration import WORKER, operation
from flowfabric.operations.types import (
    Answer,
    Batch,
    ExecutionId,
    FenceId,
    Free,
    Namespace,
    Outcome,
    Owned,
    Part,
    Timestamp,
    WorkerId,
)

ClaimedAs = Literal["initial", "retry", "reclaim", "replay", "resumed"]
DEFAULT_LEASE_MS: Final = 30_000
# Steps that one finish may bring along.
MOST_STEPS: Final = 100
# Neighbours that an answer names, and that one report may name.
MOST_NEIGHBOURS: Final = 100

StoredPolicy = Annotated[
    msgspec.Raw, msgspec.Meta(extra_json_schema={"$ref": "#/components/schemas/ExecutionPolicy"})
]
# The engine checks its form, so that a malformed id does not fail the other items of its batch.
HeldExecution = Annotated[str, Owned("execution")]
GrantKey = Annotated[str, Free("the proof of a grant, which is checked with its execution")]
# Names one logical operation under its lease: a repeat is answered as the first call was.
Op = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Lanes = Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=64)]
# What a worker runs; None stands for every kind.
Kinds = Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=MOST_KINDS)] | None
Milliseconds = Annotated[int, msgspec.Meta(description="1000 to 3600000")]


class Fence(Part, frozen=True, kw_only=True):
    """The execution and the proof that its lease is held; the three parts go together."""

    execution_id: HeldExecution
    lease_id: FenceId = ""
    lease_epoch: int = 0
    attempt_id: FenceId = ""


# ---- presence


class Registration(Part, frozen=True, kw_only=True):
    """A worker process, and how long it counts as alive without a heartbeat."""

    worker_id: WorkerId
    worker_instance_id: WorkerId
    lanes: Annotated[Collection[str], msgspec.Meta(min_length=1)]
    capabilities: Collection[str] = ()
    kinds: Kinds = None
    ttl_ms: Annotated[int, msgspec.Meta(description="1000 to 600000")]
    namespace: Namespace = "default"
    # Accepted and ignored.
    build: str = ""
    # Boot id of the host, namespace of process numbers, user, number and start of the process, with
    # slashes between them: whoever is at the same place can see whether it still runs.
    process: Annotated[str, msgspec.Meta(max_length=256)] = ""


class Neighbour(Answer, frozen=True):
    """A registered worker whose process is at the same place."""

    worker_instance_id: str
    process: str


class Registered(Outcome, frozen=True):
    """The worker was not registered before."""

    next_expiry_ms: int
    config_revision: int
    neighbours: tuple[Neighbour, ...] = ()


class Refreshed(Outcome, frozen=True):
    """The worker was registered; its expiry is extended."""

    next_expiry_ms: int
    config_revision: int
    neighbours: tuple[Neighbour, ...] = ()


class Left(Outcome, frozen=True):
    """The worker is no longer registered."""


class NotRegistered(Outcome, frozen=True):
    """The worker is not registered, or has expired: register again."""


class HeldLease(Answer, frozen=True):
    execution_id: str
    lease_id: str


class Holdings(Answer, frozen=True, kw_only=True):
    """The leases that a worker holds; left out while nothing was taken since the mark."""

    mark: str
    held: tuple[HeldLease, ...] | None = None


class LeasesEnded(Outcome, frozen=True):
    """How many leases ended with their workers."""

    leases: int


# ---- claims


class ClaimTerms(Part, frozen=True, kw_only=True):
    """What a worker asks for: how much work, from which lanes, of which kinds, and for how long."""

    worker_id: WorkerId
    worker_instance_id: WorkerId
    lanes: Lanes
    namespace: Namespace = "default"
    capabilities: tuple[str, ...] = ()
    kinds: Kinds = None
    n: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    lease_ms: Milliseconds = DEFAULT_LEASE_MS
    payload: bool = True
    upstreams: bool = False


class ClaimOrder(ClaimTerms, frozen=True, kw_only=True):
    """With how long to wait for work."""

    wait_ms: Annotated[int, msgspec.Meta(description="0 to 30000")] = 0


class Resumption(Answer, frozen=True):
    """What paused the attempt, what ended that, and the signals that did; without `signals` they
    have to be asked for."""

    suspension_id: str
    how: How
    signals: tuple[ReceivedSignal, ...] | None = None


class Claim(Answer, frozen=True, gc=False, kw_only=True):
    """One execution under a lease, with all its worker needs."""

    execution_id: str
    namespace: str
    lane_id: str
    execution_kind: str
    priority: int
    flow_id: str = ""
    attempt_index: int
    attempt_id: str
    attempt_type: ClaimedAs
    lease_id: str
    lease_epoch: int
    lease_expires_at: int
    # The store's clock at the moment of the claim.
    claimed_at: int
    created_at: int
    input: bytes | None = None
    # The input is too large for this answer: fetch it.
    input_deferred: bool = False
    payload_encoding: str = ""
    upstreams: tuple[Upstream, ...] = ()
    tags: Mapping[str, str]
    # The frozen policy as it is stored.
    policy: StoredPolicy | msgspec.UnsetType = msgspec.UNSET
    retry_count: int
    replay_count: int = 0
    round: int = 0
    journal_length: int
    # Unread signals in its mailbox.
    mail_count: int = 0
    resumed_by: Resumption | None = None

    # Logs must not show lease ids, which authorize, nor inputs, which may be personal.
    def __rich_repr__(self) -> list[tuple[str, object]]:
        names = ("execution_id", "execution_kind", "lane_id", "attempt_index", "attempt_type")
        return [(name, getattr(self, name)) for name in names]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"Claim({fields})"


class ClaimReply(Answer, frozen=True, kw_only=True):
    """`more`: all that was asked for was leased, so there may be more work."""

    items: list[Claim]
    more: bool
    now: int


class NewGrant(Part, frozen=True, kw_only=True):
    lane_id: Annotated[str, Free("a name within its namespace")]
    worker_instance_id: WorkerId
    grant_ttl_ms: int
    namespace: Namespace = "default"
    capabilities: tuple[str, ...] = ()
    kinds: Kinds = None


class Grant(Answer, frozen=True, kw_only=True):
    """A reservation as it is handed to a worker."""

    execution_id: str
    partition_key: str
    grant_key: str
    expires_at_ms: int
    lane_id: str
    kind: GrantKind


class GrantClaim(Part, frozen=True, kw_only=True):
    """A grant that its worker exchanges for a lease."""

    execution_id: ExecutionId
    grant_key: GrantKey
    worker_id: WorkerId
    worker_instance_id: WorkerId
    kind: GrantKind = "claim"
    lease_ms: Milliseconds = DEFAULT_LEASE_MS

    # Logs must not show the key, which authorizes.
    def __repr__(self) -> str:
        return f"GrantClaim({self.execution_id!r}, kind={self.kind!r})"


# ---- renewals


class Renewal(Fence, frozen=True, kw_only=True):
    """A lease to renew, and progress to report with it."""

    progress_pct: int | None = None
    progress_message: str | None = None


class Renewed(Answer, frozen=True):
    lease_expires_at: int


class RenewReply(Answer, frozen=True, kw_only=True):
    """A revision of 0 means that the worker is not registered."""

    items: list[Renewed | errors.FlowFabricError]
    now: int
    config_revision: int


# ---- outcomes


class Complete(Part, frozen=True, gc=False, tag_field="type", tag="complete"):
    """The attempt succeeded, with this result or none."""

    result: bytes | None = None
    encoding: str = ""


class Fail(Failure, frozen=True, tag_field="type", tag="fail", forbid_unknown_fields=True):
    """The attempt failed; `retryable` False forbids another, whatever the policy says."""


class Cancel(Part, frozen=True, tag_field="type", tag="cancel"):
    reason: str


class Delay(Part, frozen=True, tag_field="type", tag="delay"):
    """Continue later; with `for_ms` 0 the next claim gets the work at once."""

    until: Timestamp | None = None
    for_ms: int | None = None


class WaitChildren(Part, frozen=True, tag_field="type", tag="wait_children"):
    """Continue when these have ended; without any, when no inbound edge is open."""

    children: tuple[HeldExecution, ...] = ()


class Park(Part, frozen=True, tag_field="type", tag="park"):
    """The handler does not make the calls that are recorded: wait for an operator, who resumes,
    replays or cancels. `detail` names both calls."""

    detail: str


class Restart(Part, frozen=True, tag_field="type", tag="restart"):
    """Begin the next round of the execution with this input and an empty journal."""

    input: bytes
    encoding: str = ""


Ending = Complete | Fail | Cancel | Delay | WaitChildren | Park | Restart


class Finish(Fence, frozen=True, gc=False, kw_only=True):
    """How one attempt ends or pauses."""

    op: Op
    outcome: Ending
    # Steps that are journaled with the end; only of attempts that complete or fail.
    steps: Annotated[tuple[JournalEntry, ...], msgspec.Meta(max_length=MOST_STEPS)] = ()


class Finished(Answer, frozen=True, gc=False, kw_only=True):
    """The public state of the execution, and its next attempt if there is one."""

    state: str
    delay_until: int = 0
    next_attempt_index: int = 0
    replayed: bool = False


class FinishReply(Answer, frozen=True, kw_only=True):
    """One answer per finish, in order, and the work claimed in the same call; `more` is set if
    work was asked for."""

    items: list[Finished | errors.FlowFabricError]
    claimed: list[Claim]
    more: bool | None = None
    now: int


class Workers:
    @operation("POST /v1/worker/register", WORKER, errors.InvalidInput, errors.InvalidCapabilities)
    async def register_worker(self, worker: Registration) -> Registered | Refreshed:
        """Register a worker with its lanes, capabilities and kinds, until its heartbeats stop."""

    @operation("POST /v1/worker/heartbeat", WORKER)
    async def heartbeat(
        self, worker_instance_id: WorkerId, namespace: Namespace = "default"
    ) -> Refreshed | NotRegistered:
        """Keep a registered worker alive."""

    @operation("POST /v1/worker/leave", WORKER)
    async def leave(
        self, worker_instance_id: WorkerId, reason: str = "left", namespace: Namespace = "default"
    ) -> Left | NotRegistered:
        """Unregister a worker; its leases stay."""

    @operation("POST /v1/worker/gone", WORKER, errors.InvalidInput)
    async def report_gone(
        self,
        worker_instance_id: WorkerId,
        gone: Annotated[Sequence[WorkerId], msgspec.Meta(min_length=1, max_length=MOST_NEIGHBOURS)],
        namespace: Namespace = "default",
    ) -> LeasesEnded | NotRegistered:
        """Report neighbours whose processes have ended: they are unregistered, and their leases
        end at once."""

    @operation(
        "POST /v1/worker/watch",
        WORKER,
        errors.InvalidInput,
        errors.ResourceExhausted,
        errors.Unavailable,
        waits="wait_ms",
    )
    async def watch(
        self,
        worker_instance_id: WorkerId,
        namespace: Namespace = "default",
        mark: str = "",
        wait_ms: Annotated[int, msgspec.Meta(ge=0, le=30_000)] = 30_000,
    ) -> Holdings:
        """Wait until a lease is taken from this worker; then what it holds. Without a mark, only
        the mark to go on from."""

    @operation(
        "POST /v1/worker/claim",
        WORKER,
        errors.InvalidInput,
        errors.ResourceExhausted,
        errors.Unavailable,
        repeat=False,
        waits="wait_ms",
    )
    async def claim(self, order: ClaimOrder) -> ClaimReply | None:
        """Lease work of the kinds that the worker runs, or wait until there is some."""

    @operation("POST /v1/workers/{worker_id}/claim", WORKER, errors.InvalidInput, repeat=False)
    async def claim_grant(self, worker_id: WorkerId, new: NewGrant) -> Grant | None:
        """Reserve the best waiting execution of a lane for a worker."""

    @operation(
        "POST /v1/worker/claim-granted",
        WORKER,
        errors.ExecutionNotFound,
        errors.InvalidInput,
        errors.InvalidClaimGrant,
        errors.ClaimGrantExpired,
        errors.ExecutionNotLeaseable,
        repeat=False,
    )
    async def claim_granted(self, granted: GrantClaim) -> Claim:
        """Lease what a grant reserves for this worker; a grant can be used once."""

    @operation("POST /v1/worker/renew", WORKER, errors.InvalidInput)
    async def renew(
        self,
        worker_instance_id: WorkerId,
        lease_ms: Milliseconds,
        items: Batch[Renewal],
        namespace: Namespace = "default",
    ) -> RenewReply:
        """Renew leases, report progress, and keep the worker alive."""

    @operation(
        "POST /v1/worker/finish", WORKER, errors.InvalidInput, size="batch", with_last="next"
    )
    async def finish(self, items: Batch[Finish], next: ClaimTerms | None = None) -> FinishReply:
        """End or pause attempts, and claim the next work in the same call."""
