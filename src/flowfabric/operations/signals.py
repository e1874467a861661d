"""Signals, and the waitpoints that take them."""

from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from flowfabric import errors
from flowfabric.core.documents import Redacted
from flowfabric.core.rules.signals import Accepted, Duplicate
from flowfabric.core.suspensions import ReceivedSignal, Signal, WaitpointState
from flowfabric.core.tokens import WaitpointToken
from flowfabric.operations.declaration import ADMIN, APPROVE, READ, SUBMIT, WORKER, operation
from flowfabric.operations.types import (
    UUID_PATTERN,
    Answer,
    ExecutionId,
    Free,
    Limit,
    Page,
    Part,
    Timestamp,
    WaitpointId,
    one_of,
)

_REFUSALS: Final = (
    errors.InvalidInput,
    errors.PayloadTooLarge,
    errors.SignalLimitExceeded,
    errors.TargetNotSignalable,
    errors.WaitpointClosed,
    errors.PendingWaitpointExpired,
)
DAY_MS: Final = 86_400_000

SignalId = Annotated[str, msgspec.Meta(pattern=UUID_PATTERN), Free("a name within its waitpoint")]
CorrelationId = Annotated[str, Free("a label; nothing is looked up by it")]


class NewSignal(Redacted, Part, frozen=True, kw_only=True):
    """A signal and the token of its waitpoint. Values are checked when it is delivered."""

    hidden = Signal.hidden

    waitpoint_id: WaitpointId
    signal_id: SignalId
    signal_name: str
    signal_category: str
    source_type: str
    source_identity: str
    waitpoint_token: WaitpointToken
    payload: bytes | None = None
    payload_encoding: str = "json"
    correlation_id: CorrelationId = ""
    idempotency_key: str = ""
    dedup_ttl_ms: int = DAY_MS
    target_scope: Annotated[str, one_of("waitpoint", "execution")] = "waitpoint"
    created_at: Timestamp | None = None
    # None leaves it to the resume policy.
    resume_delay_ms: int | None = None
    max_signals_per_execution: int | None = None
    # Accepted and ignored: buffers have no length of their own.
    signal_maxlen: int | None = None


class Approval(Redacted, Part, frozen=True, kw_only=True):
    """The decision of a person who holds no token and gets none."""

    hidden = Signal.hidden

    signal_name: str
    source_identity: str
    payload: bytes | None = None
    idempotency_key: str = ""


# JSON that is kept as it came.
if TYPE_CHECKING:
    Json = msgspec.Raw | None
else:
    Json = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={})]


class Mail(Redacted, Part, frozen=True, kw_only=True):
    """A signal for the mailbox of an execution. Of signals with one `id` the first one counts, for
    24 hours; without an id each one counts."""

    hidden = Signal.hidden

    payload: Json = None
    id: Annotated[str, Free("a name within its execution")] = ""


class Unread(Answer, frozen=True):
    """The signals in a mailbox, oldest first."""

    signals: tuple[ReceivedSignal, ...]


class OpenWaitpoint(Answer, frozen=True, kw_only=True):
    """A waitpoint that takes signals, without its token. An instant of 0 has not come."""

    execution_id: str
    waitpoint_id: str
    waitpoint_key: str
    state: WaitpointState
    # Empty: any name.
    required_signal_names: tuple[str, ...]
    created_at: int
    activated_at: int = 0
    expires_at: int = 0
    token_kid: str
    token_fingerprint: str


class TokenOfWaitpoint(Answer, frozen=True):
    token: WaitpointToken


Delivered = Accepted | Duplicate


class Signals:
    @operation(
        "POST /v1/executions/{execution_id}/signal",
        SUBMIT,
        errors.InvalidToken,
        errors.TokenExpired,
        *_REFUSALS,
        size="medium",
    )
    async def signal(self, execution_id: ExecutionId, new: NewSignal) -> Accepted | Duplicate:
        """Deliver a signal by the token of its waitpoint, which is checked before anything
        else."""

    @operation(
        "POST /v1/executions/{execution_id}/signals/{name}",
        SUBMIT,
        errors.ExecutionNotFound,
        errors.ExecutionNotActive,
        errors.InvalidInput,
        errors.PayloadTooLarge,
        errors.SignalLimitExceeded,
        errors.ResourceExhausted,
        size="medium",
        repeat=("id",),
    )
    async def signal_by_name(
        self, execution_id: ExecutionId, name: str, mail: Mail
    ) -> Accepted | Duplicate:
        """Put a signal into the mailbox of an execution, whatever it is doing. It is kept until a
        wait for its name takes it."""

    @operation("GET /v1/executions/{execution_id}/mailbox", WORKER, errors.ExecutionNotFound)
    async def read_mailbox(self, execution_id: ExecutionId) -> Unread:
        """The unread signals of the mailbox with their payloads, for whoever runs the
        execution."""

    @operation(
        "GET /v1/executions/{execution_id}/pending-waitpoints", READ, errors.ExecutionNotFound
    )
    async def list_pending_waitpoints(
        self, execution_id: ExecutionId, after: str = "", limit: Limit = 100
    ) -> Page[OpenWaitpoint]:
        """Waitpoints that take signals now, by id; never with their tokens. The cursor is the next
        `after`."""

    @operation(
        "POST /v1/executions/{execution_id}/waitpoints/{waitpoint_id}/approve",
        APPROVE,
        errors.ExecutionNotFound,
        errors.NoWaitpointToApprove,
        *_REFUSALS,
        size="medium",
        repeat=("idempotency_key",),
    )
    async def approve(
        self, execution_id: ExecutionId, waitpoint_id: WaitpointId, decision: Approval
    ) -> Accepted | Duplicate:
        """Deliver the decision of a person, who needs no token and gets none."""

    @operation(
        "GET /v1/executions/{execution_id}/waitpoints/{waitpoint_id}/token",
        ADMIN,
        errors.NotFound,
        errors.Forbidden,
        is_secret=True,
    )
    async def waitpoint_token(
        self, execution_id: ExecutionId, waitpoint_id: WaitpointId
    ) -> TokenOfWaitpoint:
        """The token of an open waitpoint; refused on a server without API tokens."""
