"""Callbacks of other services: a request with the token of a waitpoint becomes its signal."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec

from flowfabric.core.tokens import WaitpointToken, same_text
from flowfabric.errors import (
    ExecutionNotFound,
    FlowFabricError,
    InvalidInput,
    InvalidToken,
    MethodNotAllowed,
    NotFound,
    PayloadTooLarge,
    TokenExpired,
    Unauthorized,
)
from flowfabric.operations.signals import Delivered, NewSignal

if TYPE_CHECKING:
    from flowfabric.fabric.app import FlowFabric
    from flowfabric.fabric.submitter import Submitter

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_MOST_BYTES: Final = 64 * 1024
_SCHEME: Final = b"Bearer "


class BridgeSignal(msgspec.Struct, frozen=True, kw_only=True):
    """The signal of a callback; an id or a key makes a repeat recognisable."""

    name: str
    payload: bytes | None = None
    payload_encoding: str = "json"
    category: str = "callback"
    source_type: str = "external"
    source_identity: str = ""
    scope: str = "waitpoint"
    signal_id: str = ""
    idempotency_key: str = ""

    # What people send may be personal.
    def __repr__(self) -> str:
        return f"BridgeSignal({self.name!r})"


class UnknownWaitpoint(msgspec.Struct, frozen=True):
    """There is no such waitpoint, or none that has a token."""


class TokenMismatch(msgspec.Struct, frozen=True):
    """The presented token is another one than the waitpoint's."""


async def verify_and_deliver(
    fabric: "FlowFabric",
    execution_id: str,
    waitpoint_id: str,
    presented_token: WaitpointToken | str,
    signal: BridgeSignal,
) -> Delivered | UnknownWaitpoint | TokenMismatch:
    """Deliver a signal if the presented token is the waitpoint's. Over HTTP this reads the token,
    which needs the scope `admin`; the delivery itself verifies once more."""
    token = presented_token if isinstance(presented_token, str) else presented_token.reveal()
    port = await fabric.submitter()
    new = _signal(waitpoint_id, WaitpointToken(token), signal)
    try:
        stored = (await port.waitpoint_token(execution_id, waitpoint_id)).token
    except (ExecutionNotFound, NotFound):
        return await _repeated(port, execution_id, new)
    if not same_text(stored.reveal(), token):
        return TokenMismatch()
    return await port.signal(execution_id, new)


async def _repeated(
    port: "Submitter", execution_id: str, new: NewSignal
) -> Delivered | UnknownWaitpoint:
    """The answer of a waitpoint whose token cannot be read. A closed one takes no signal, but
    recognises the repeat of one it took, whose answer may have been lost."""
    try:
        return await port.signal(execution_id, new)
    except (ExecutionNotFound, InvalidToken, TokenExpired):
        return UnknownWaitpoint()


def _signal(waitpoint_id: str, token: WaitpointToken, signal: BridgeSignal) -> NewSignal:
    return NewSignal(
        waitpoint_id=waitpoint_id,
        signal_id=signal.signal_id or str(uuid4()),
        signal_name=signal.name,
        signal_category=signal.category,
        source_type=signal.source_type,
        source_identity=signal.source_identity,
        waitpoint_token=token,
        payload=signal.payload,
        payload_encoding=signal.payload_encoding,
        idempotency_key=signal.idempotency_key,
        target_scope=signal.scope,
    )


class CallbackRoute:
    """An ASGI application to mount: `POST …/{execution_id}/{waitpoint_id}`.

    The token comes as `Authorization: Bearer`, never in the URL, the body is the payload, and
    `Idempotency-Key` makes repeats harmless. Every callback becomes a signal of one name.
    """

    def __init__(self, fabric: "FlowFabric", name: str, source_identity: str = "") -> None:
        self._fabric = fabric
        self._name = name
        self._source = source_identity

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])
        try:
            await _answer(send, 200, _delivered(await self._deliver(scope, receive)))
        except FlowFabricError as fault:
            await _answer(send, fault.status or 500, fault.body())

    async def _deliver(
        self, scope: Scope, receive: Receive
    ) -> Delivered | UnknownWaitpoint | TokenMismatch:
        if scope["method"] != "POST":
            raise MethodNotAllowed("POST")
        headers = dict(scope["headers"])
        given = headers.get(b"authorization", b"")
        if not given.startswith(_SCHEME):
            raise Unauthorized("missing or invalid Authorization header")
        before, _, waitpoint_id = scope["path"].rstrip("/").rpartition("/")
        execution_id = before.rpartition("/")[2]
        if not execution_id:
            raise NotFound("no such route")
        signal = BridgeSignal(
            name=self._name,
            source_identity=self._source,
            payload=await _body(receive),
            idempotency_key=headers.get(b"idempotency-key", b"").decode("latin-1"),
        )
        token = given.removeprefix(_SCHEME).decode("latin-1")
        return await verify_and_deliver(self._fabric, execution_id, waitpoint_id, token, signal)


async def _body(receive: Receive) -> bytes | None:
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise InvalidInput("payload: cut short")
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > _MOST_BYTES:
            raise PayloadTooLarge(limit_bytes=_MOST_BYTES)
    return body or None


def _delivered(outcome: Delivered | UnknownWaitpoint | TokenMismatch) -> Delivered:
    if isinstance(outcome, UnknownWaitpoint):
        raise NotFound("unknown waitpoint")
    if isinstance(outcome, TokenMismatch):
        raise Unauthorized("the token is not the waitpoint's")
    return outcome


async def _answer(send: Send, status: int, body: object) -> None:
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    content = msgspec.json.encode(body)
    headers.append((b"content-length", b"%d" % len(content)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
