"""Signals as programs send them."""

from uuid import uuid4

import msgspec

from flowfabric.core.tokens import WaitpointToken
from flowfabric.fabric.submitter import Submitter
from flowfabric.operations.signals import Delivered, NewSignal
from flowfabric.worker import codecs


class SignalCall(msgspec.Struct, frozen=True, kw_only=True):
    """A signal, where it goes, and the token that lets it in."""

    execution_id: str
    waitpoint_id: str
    token: WaitpointToken | str
    name: str
    payload: object = None
    category: str = "default"
    source_type: str = "external"
    source_identity: str = ""
    scope: str = "execution"
    signal_id: str = ""
    idempotency_key: str = ""
    correlation_id: str = ""

    # What people send may be personal, and the token is a credential.
    def __repr__(self) -> str:
        return f"SignalCall(execution_id={self.execution_id!r}, name={self.name!r})"


async def deliver(port: Submitter, call: SignalCall) -> Delivered:
    token = call.token
    body: bytes | None = None
    encoding = codecs.JSON
    if call.payload is not None:
        body, encoding = codecs.encode(call.payload)
    return await port.signal(
        call.execution_id,
        NewSignal(
            waitpoint_id=call.waitpoint_id,
            signal_id=call.signal_id or str(uuid4()),
            signal_name=call.name,
            signal_category=call.category,
            source_type=call.source_type,
            source_identity=call.source_identity,
            waitpoint_token=WaitpointToken(token) if isinstance(token, str) else token,
            payload=body,
            payload_encoding=encoding,
            idempotency_key=call.idempotency_key,
            correlation_id=call.correlation_id,
            target_scope=call.scope,
        ),
    )
