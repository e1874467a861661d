"""Signals, waitpoints and approvals."""

from typing import Annotated, Literal

import msgspec

from flowfabric.operations.types import Answer, Body, Params, Timestamp
from flowfabric.wire.scalars import Bytes, Tagged, Uuid


class SendSignal(Body, frozen=True, kw_only=True):
    waitpoint_id: Uuid
    signal_id: Uuid
    signal_name: str
    signal_category: str
    source_type: str
    source_identity: str
    target_scope: Literal["waitpoint", "execution"]
    waitpoint_token: str
    execution_id: str | None = None
    payload: Bytes | None = None
    payload_encoding: str = "json"
    correlation_id: str = ""
    idempotency_key: str = ""
    created_at: Timestamp | None = None
    dedup_ttl_ms: int = 86_400_000
    resume_delay_ms: int | None = None
    max_signals_per_execution: int | None = None
    # Kept for callers that send it; buffers have no length of their own.
    signal_maxlen: int | None = None


class Accepted(Answer, frozen=True, kw_only=True):
    signal_id: str
    effect: str


class DuplicateSignal(Answer, frozen=True, kw_only=True):
    existing_signal_id: str


class SignalAnswer(Tagged, frozen=True, kw_only=True):
    accepted: Accepted | None = None
    duplicate: DuplicateSignal | None = None


class Approve(Body, frozen=True, kw_only=True):
    """The decision of a person who holds no token."""

    signal_name: str
    source_identity: str
    execution_id: str | None = None
    waitpoint_id: str | None = None
    payload: Bytes | None = None
    idempotency_key: str = ""


class OpenWaitpoint(Answer, frozen=True, kw_only=True):
    """A waitpoint as anybody may see it: never with its token."""

    waitpoint_id: str
    waitpoint_key: str
    state: Literal["pending", "active"]
    required_signal_names: list[str]
    created_at: int
    activated_at: int | None = None
    expires_at: int | None = None
    execution_id: str
    token_kid: str
    token_fingerprint: str


class WaitpointsQuery(Params, frozen=True, kw_only=True):
    after: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100


class TokenAnswer(Answer, frozen=True, kw_only=True):
    token: str

    # The token is a credential: no rendering of the answer shows it.
    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("token", "<REDACTED>")]

    def __repr__(self) -> str:
        return "TokenAnswer(token='<REDACTED>')"
