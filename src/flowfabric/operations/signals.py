"""Signals, and the waitpoints that take them."""

from typing import Annotated, Any, Final

import msgspec

from flowfabric.core.rules.signals import Accepted, Duplicate
from flowfabric.core.suspensions import WaitpointState
from flowfabric.core.tokens import WaitpointToken
from flowfabric.errors import (
    ExecutionNotFound,
    Forbidden,
    InvalidInput,
    InvalidToken,
    NotFound,
    NoWaitpointToApprove,
    PayloadTooLarge,
    PendingWaitpointExpired,
    SignalLimitExceeded,
    TargetNotSignalable,
    TokenExpired,
    WaitpointClosed,
)
from flowfabric.operations.declaration import ADMIN, APPROVE, READ, SUBMIT, operation
from flowfabric.operations.types import (
    UUID_PATTERN,
    Answer,
    ExecutionId,
    Free,
    Page,
    Part,
    Timestamp,
    WaitpointId,
    one_of,
)

_REFUSALS: Final = (
    InvalidInput,
    PayloadTooLarge,
    SignalLimitExceeded,
    TargetNotSignalable,
    WaitpointClosed,
    PendingWaitpointExpired,
)
DAY_MS: Final = 86_400_000

SignalId = Annotated[str, msgspec.Meta(pattern=UUID_PATTERN), Free("a name within its waitpoint")]
CorrelationId = Annotated[str, Free("a label; nothing is looked up by it")]
Limit = Annotated[int, msgspec.Meta(ge=1, le=1000)]


class _Redacted(Part, frozen=True, kw_only=True):
    """A request whose payload is redacted when it is printed: it may be personal."""

    def __rich_repr__(self) -> list[tuple[str, object]]:
        members: list[tuple[str, Any]] = [
            (name, getattr(self, name)) for name in self.__struct_fields__
        ]
        return [(name, "<REDACTED>" if name == "payload" else one) for name, one in members]

    def __repr__(self) -> str:
        members = ", ".join(f"{name}={one!r}" for name, one in self.__rich_repr__())
        return f"{type(self).__name__}({members})"


class NewSignal(_Redacted, frozen=True, kw_only=True):
    """A signal and the token of its waitpoint. Values are checked when it is delivered."""

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


class Approval(_Redacted, frozen=True, kw_only=True):
    """The decision of a person who holds no token and gets none."""

    signal_name: str
    source_identity: str
    payload: bytes | None = None
    idempotency_key: str = ""


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
        InvalidToken,
        TokenExpired,
        *_REFUSALS,
        size="medium",
    )
    async def signal(self, execution_id: ExecutionId, new: NewSignal) -> Accepted | Duplicate:
        """Deliver a signal by the token of its waitpoint, which is checked before anything
        else."""

    @operation("GET /v1/executions/{execution_id}/pending-waitpoints", READ, ExecutionNotFound)
    async def list_pending_waitpoints(
        self, execution_id: ExecutionId, after: str = "", limit: Limit = 100
    ) -> Page[OpenWaitpoint]:
        """Waitpoints that take signals now, by id; never with their tokens. The cursor is the next
        `after`."""

    @operation(
        "POST /v1/executions/{execution_id}/waitpoints/{waitpoint_id}/approve",
        APPROVE,
        ExecutionNotFound,
        NoWaitpointToApprove,
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
        NotFound,
        Forbidden,
        is_secret=True,
    )
    async def waitpoint_token(
        self, execution_id: ExecutionId, waitpoint_id: WaitpointId
    ) -> TokenOfWaitpoint:
        """The token of an open waitpoint; refused on a server without API tokens."""
