"""Reads of executions: one with its attempts, why it does not run, its end, search and counts."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, get_args

import msgspec

from flowfabric.core.events import HistoryEntry
from flowfabric.core.facets import Facets
from flowfabric.core.graph import Upstream
from flowfabric.core.journal import JournalEntry
from flowfabric.core.record import NO_ATTEMPT
from flowfabric.core.suspensions import How, ReceivedSignal
from flowfabric.errors import ExecutionNotFound
from flowfabric.operations.declaration import READ, READ_OR_WORKER, operation
from flowfabric.operations.types import (
    VISIBLE,
    Answer,
    ExecutionId,
    Free,
    LaneName,
    Limit,
    Namespace,
    Page,
    Params,
)

Order = Literal["created_desc", "created_asc", "priority"]


class CurrentAttempt(Answer, frozen=True):
    attempt_id: str
    attempt_index: int


class CurrentLease(Answer, frozen=True, kw_only=True):
    lease_id: str
    lease_epoch: int
    worker_instance_id: str
    expires_at: int
    attempt_index: int
    last_heartbeat_at: int = 0


class ExecutionContext(Answer, frozen=True):
    """The input of a handler."""

    input_payload: bytes
    execution_kind: str
    tags: Mapping[str, str]


class Child(Answer, frozen=True):
    execution_id: str
    public_state: str


class KeptSignal(Answer, frozen=True, kw_only=True):
    """An unread signal in the mailbox, without its payload."""

    signal_name: str
    signal_id: Annotated[str, Free("a name within its execution")]
    accepted_at: int
    payload_bytes: int = 0


class ExecutionInfo(Answer, frozen=True, kw_only=True):
    """One execution as its readers see it. An instant of 0 has not come yet."""

    execution_id: str
    namespace: str
    lane_id: str
    priority: int
    execution_kind: str
    state_vector: Facets
    public_state: str
    created_at: int
    started_at: int = 0
    completed_at: int = 0
    current_attempt_index: int
    flow_id: str = ""
    parent_id: str = ""
    # The first hundred by creation, and whether there are more.
    children: tuple[Child, ...] = ()
    more_children: bool = False
    # How many signals are unread, and the first hundred of them.
    mail_count: int = 0
    mailbox: tuple[KeptSignal, ...] = ()
    blocking_detail: str
    # How it ended, or failed last.
    result_encoding: str = ""
    failure_reason: str = ""
    failure_category: str = ""
    cancellation_reason: str = ""
    # Who holds it now, or held it last.
    current_attempt: CurrentAttempt | None = None
    current_lease: CurrentLease | None = None
    current_waitpoint: str = ""
    # What its handler reported last.
    progress_pct: int | None = None
    progress_message: str = ""
    total_attempt_count: int = 0
    last_mutation_at: int = 0
    tags: dict[str, str] = msgspec.field(default_factory=dict)


class Attempt(Answer, frozen=True, kw_only=True):
    """One try at an execution. An instant of 0 has not come yet."""

    index: int = msgspec.field(name="attempt_index")
    attempt_id: str
    type: str = msgspec.field(name="attempt_type")
    state: str
    created_at: int = 0
    started_at: int = 0
    ended_at: int = 0
    lease_id: str = ""
    lease_epoch: int = 0
    worker_id: str = ""
    worker_instance_id: str = ""
    failure_reason: str = ""
    failure_category: str = ""
    previous_attempt: int = NO_ATTEMPT
    lineage_reason: str = ""
    lineage_requester: str = ""
    suspended_at: int = 0
    suspension_id: str = ""
    resumed_at: int = 0
    closed_at: int = 0
    closed_reason: str = ""


class Attempts(Answer, frozen=True):
    attempts: tuple[Attempt, ...]


class Upstreams(Answer, frozen=True):
    upstreams: tuple[Upstream, ...]


class ResumeSignals(Answer, frozen=True, kw_only=True):
    """How the suspension ended, and the signals that satisfied its condition, in the order in which
    they were accepted. Neither is there while it has not ended."""

    resumed_by: How | None = None
    signals: tuple[ReceivedSignal, ...]
    suspension_id: str = ""


class Search(Params, frozen=True, kw_only=True):
    namespace: Namespace = ""
    state: tuple[str, ...] = ()
    lane: str = ""
    kind: str = ""
    flow_id: Annotated[str, Free("only visible executions are found")] = ""
    worker: str = ""
    tag: tuple[str, ...] = ()
    created_after: Annotated[int, msgspec.Meta(ge=0)] = 0
    created_before: Annotated[int, msgspec.Meta(ge=0)] = 0
    order: Order = "created_desc"
    limit: Limit = 50
    cursor: str = ""


class FoundExecution(Answer, frozen=True, kw_only=True):
    execution_id: str
    namespace: str
    lane_id: str
    execution_kind: str
    flow_id: str = ""
    public_state: str
    blocking_reason: str
    priority: int
    attempt_count: int
    created_at: int
    started_at: int = 0
    completed_at: int = 0
    tags: dict[str, str]


class ExecutionSummary(Answer, frozen=True, kw_only=True):
    """One line of a lane's listing."""

    execution_id: str
    namespace: str
    lane_id: str
    execution_kind: str
    public_state: str
    priority: int
    created_at: int


class Counts(Answer, frozen=True):
    """How many executions are in each public state."""

    counts: dict[str, int]


WaitMs = Annotated[int, msgspec.Meta(ge=0, le=30_000)]
AttemptIndex = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
After = Annotated[int, msgspec.Meta(ge=0)]
# A limit above the largest page means the largest page; 0 means none.
ClampedLimit = Annotated[int, msgspec.Meta(ge=0)]


# ---- how it ended

End = Literal["completed", "failed", "cancelled", "expired", "skipped"]
# By public state.
ENDS: Final[Mapping[str, End]] = {state: state for state in get_args(End)}

# Headers of a result, whose body is its bytes alone: the attempt, while the execution is completed,
# and the encoding, percent-encoded because workers choose it freely.
ATTEMPT_HEADER: Final = "x-attempt-index"
ENCODING_HEADER: Final = "x-result-encoding"
COMPLETED_HEADER: Final = "x-result-completed-at"


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How an execution ended, with its result if it completed."""

    execution_id: str
    state: End
    attempt_index: int = 0
    result: bytes | None = None
    result_encoding: str = ""
    reason: str = ""
    category: str = ""
    completed_at: int = 0


# ---- why it does not run

Code = Literal[
    "lane_state",
    "delay",
    "retry_backoff",
    "resume_delay",
    "dependencies",
    "missing_capabilities",
    "missing_kind",
    "no_worker",
    "budget",
    "quota",
    "concurrency_key",
    "operator_hold",
    "suspended",
    "reserved",
    "lease_lost",
    "terminal",
]


class Blocker(Answer, frozen=True):
    """One reason: in words with the figures, since when, and until when if time alone ends it."""

    code: Code
    detail: str
    since: int | None = None
    until: int | None = None


class QueuePlace(Answer, frozen=True, kw_only=True):
    """Where a waiting execution stands. `ahead` counts those of its lane that the same workers
    would take first, of the first two hundred looked at."""

    lane_id: str
    ahead: int
    oldest_waiting_ms: int
    live_workers: int
    capable_workers: int


class NextTimer(Answer, frozen=True):
    """What happens by itself, and when."""

    what: str
    at: int


class LastFailure(Answer, frozen=True):
    reason: str
    category: str


class SuspendedExecution(Answer, frozen=True, kw_only=True):
    """One that waits for signals. Without a timeout `timeout_at_ms` is 9999999999999."""

    execution_id: str
    suspended_at_ms: int
    timeout_at_ms: int
    # The reason code of its suspension.
    reason: str


class Explanation(Answer, frozen=True, kw_only=True):
    """All reasons. An execution that does not run and has no blocker waits for its turn."""

    execution_id: str
    public_state: str
    flow_id: str = ""
    parent_id: str = ""
    # The first hundred by creation, and whether there are more.
    children: tuple[Child, ...] = ()
    more_children: bool = False
    state_vector: Facets
    running: bool
    blockers: tuple[Blocker, ...]
    queue: QueuePlace | None = None
    next_timer: NextTimer | None = None
    last_failure: LastFailure | None = None
    attempts: int
    hints: tuple[str, ...]

    def lines(self) -> list[str]:
        """The same as text, the verdict first."""
        lines = [f"{self.execution_id} is {self.public_state}: {self._verdict()}"]
        if self.parent_id:
            lines.append(f"- a child of {self.parent_id}")
        lines += [f"- child {one.execution_id} is {one.public_state}" for one in self.children]
        if self.more_children:
            lines.append(f"- and more children, in flow {self.flow_id}")
        lines += [f"- {_line(blocker)}" for blocker in self.blockers]
        if self.queue is not None:
            place = self.queue
            lines.append(
                f"- lane {place.lane_id}: {place.ahead} ahead,"
                f" {place.capable_workers} of {place.live_workers} live workers could run it"
            )
        if self.next_timer is not None:
            lines.append(f"- next: {self.next_timer.what} at {self.next_timer.at}")
        if self.last_failure is not None:
            lines.append(f"- last failure: {self.last_failure.reason}")
        return [*lines, *(f"- try: {hint}" for hint in self.hints)]

    def _verdict(self) -> str:
        if self.running:
            return "running"
        return "not running" if self.blockers else "waiting its turn"


def _line(blocker: Blocker) -> str:
    since = f", since {blocker.since}" if blocker.since else ""
    until = f", until {blocker.until}" if blocker.until else ""
    return f"{blocker.code}: {blocker.detail}{since}{until}"


class ExecutionQueries:
    @operation("GET /v1/executions/{execution_id}", READ_OR_WORKER, ExecutionNotFound)
    async def describe_execution(self, execution_id: ExecutionId) -> ExecutionInfo:
        """One execution with its state in all seven dimensions."""

    @operation(
        "GET /v1/executions/{execution_id}/state",
        READ_OR_WORKER,
        ExecutionNotFound,
        waits="wait_ms",
    )
    async def state(self, execution_id: ExecutionId, wait_ms: WaitMs = 0) -> str:
        """The public state; with `wait_ms` the answer comes when the state is final or the time is
        up."""

    @operation("GET /v1/executions/{execution_id}/attempts", READ, ExecutionNotFound)
    async def attempts(self, execution_id: ExecutionId) -> Attempts:
        """Every attempt, the first one first."""

    @operation("GET /v1/executions/{execution_id}/history", READ, ExecutionNotFound)
    async def history(
        self, execution_id: ExecutionId, cursor: str = "", limit: Limit = 1_000
    ) -> Page[HistoryEntry]:
        """Who held its lease and how each lease ended, oldest first."""

    @operation("GET /v1/executions/{execution_id}/upstreams", READ_OR_WORKER, ExecutionNotFound)
    async def upstreams(self, execution_id: ExecutionId, *, results: bool = False) -> Upstreams:
        """The upstreams of a member of a flow, on request with the results of named inputs."""

    @operation("GET /v1/executions/{execution_id}/journal", READ_OR_WORKER, ExecutionNotFound)
    async def journal(
        self, execution_id: ExecutionId, after: After = 0, limit: Limit = 100
    ) -> Page[JournalEntry]:
        """The steps recorded so far, in order of arrival; the cursor is the next `after`."""

    @operation(
        "GET /v1/executions/{execution_id}/resume-signals", READ_OR_WORKER, ExecutionNotFound
    )
    async def resume_signals(
        self, execution_id: ExecutionId, attempt_index: AttemptIndex | None = None
    ) -> ResumeSignals:
        """What ended the last suspension, of one attempt or of whichever was suspended last."""

    @operation("GET /v1/executions/{execution_id}/explain", READ, ExecutionNotFound)
    async def explain(self, execution_id: ExecutionId) -> Explanation:
        """All reasons why it does not run."""

    @operation("GET /v1/executions/search", READ, owner=VISIBLE)
    async def search(self, query: Search) -> Page[FoundExecution]:
        """Executions that match, across partitions; a short page may have a next one."""

    @operation("GET /v1/partitions/{partition}/executions", READ, owner=VISIBLE)
    async def list_executions(
        self, partition: int, cursor: str = "", limit: ClampedLimit = 50
    ) -> Page[str]:
        """The ids of one partition, in order."""

    @operation("GET /v1/partitions/{partition}/suspended", READ, owner=VISIBLE)
    async def list_suspended(
        self, partition: int, cursor: str = "", limit: ClampedLimit = 50
    ) -> Page[SuspendedExecution]:
        """Suspended executions of one partition, the next to time out first."""

    @operation("GET /v1/lanes/{lane}/executions", READ)
    async def list_lane(
        self,
        lane: LaneName,
        state: str,
        namespace: Namespace = "default",
        cursor: str = "",
        limit: ClampedLimit = 50,
    ) -> Page[ExecutionSummary]:
        """One view of a lane in its own order: `eligible`, `delayed`, `active`, `suspended`,
        `terminal` or `blocked:<reason>`."""

    @operation("GET /v1/executions/count", READ)
    async def count(self, lane: str = "", namespace: Namespace = "default") -> Counts:
        """How many executions of a lane or a namespace are in each public state."""
