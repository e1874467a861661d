"""The path of a request, in this order: host and origin, CORS, access log and metrics, route,
caller, body, handler. Plain ASGI: every step is a call, no middleware wraps another."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from functools import cache
from itertools import count
from os import urandom
from typing import Any, Final

import msgspec

from flowfabric.errors import (
    FlowFabricError,
    MethodNotAllowed,
    NotFound,
    TimedOut,
    Unavailable,
)
from flowfabric.operations.types import Params
from flowfabric.server.auth import ANONYMOUS
from flowfabric.server.call import Call, Services
from flowfabric.server.decoding import (
    ClientDisconnected,
    Receive,
    check_content_type,
    decode_body,
    decode_query,
    read_body,
)
from flowfabric.server.openapi import document_of
from flowfabric.server.origins import Cors, OriginCheck
from flowfabric.server.replies import CLOSE, EventStream, Headers, Reply, bug, encode, reply_of
from flowfabric.server.route import REQUEST_S, Match, Route, Router, read_path
from flowfabric.telemetry.logs import CALLER, REQUEST_ID
from flowfabric.telemetry.traces import given_parent

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# An ASGI extension of our listener: it sends a whole answer at once, or returns False.
ANSWER: Final = "flowfabric.answer"
Answer = Callable[[int, Headers, bytes], bool]

_access = logging.getLogger("flowfabric.http")
METRICS_PATH: Final = "/metrics"
_METRICS: Final = METRICS_PATH.encode()
_BODY_METHODS: Final = frozenset({"POST", "PUT", "DELETE", "PATCH"})
_MAX_ID: Final = 128
# How often deadlines are checked.
LOOK_S: Final = 0.5


def _opened(route: Route) -> Route:
    """The route, without scopes if it is the one of the metrics."""
    return msgspec.structs.replace(route, scopes=None) if route.path == METRICS_PATH else route


class Http:
    """The ASGI application of one server."""

    def __init__(self, services: Services, routes: Iterable[Route]) -> None:
        is_open = services.settings.metrics_open
        listed = tuple(map(_opened, routes) if is_open else routes)
        self.services = services
        services.openapi = cache(lambda: encode(document_of(listed)))
        self._router = Router(listed)
        self._origin_check = OriginCheck(services.settings)
        self._cors = Cors(services.settings)
        self._deadlines = Deadlines()
        self._ids = count(1)
        self._prefix = urandom(6).hex()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._serve(scope, receive, send)
            case "websocket":
                await send({"type": "websocket.close", "code": 1000})
            case kind:
                raise NotImplementedError(kind)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = _Request(scope, receive)
        method, headers = request.method, request.headers
        request_id = self._request_id(headers)
        REQUEST_ID.set(request_id)
        out = _Out(request, send, ((b"x-request-id", request_id.encode()),))
        if self.services.drain.has_begun:
            out.headers += (CLOSE,)
        try:
            self._origin_check.check(method, headers, (scope.get("server") or ("",))[0])
        except FlowFabricError as fault:
            await out.write(reply_of(fault))
            return
        if self._cors.is_on and request.raw_path != _METRICS:
            if method == "OPTIONS" and (asked := self._cors.preflight(headers)):
                await out.write(asked)
                return
            out.headers += self._cors.headers(headers.get(b"origin"))
        await self._respond(request, out)

    async def _respond(self, request: "_Request", out: "_Out") -> None:
        started = time.perf_counter()
        template = "unknown"
        try:
            match = self._router.find(request.method, request.raw_path)
            template = match.template
            if self.services.traces.is_on:
                await self._traced(request, match, out)
            else:
                await out.write(await self._answer(request, match))
        except FlowFabricError as fault:
            await out.write(reply_of(fault))
        except ClientDisconnected:
            return
        except Exception as fault:
            await out.write(bug(fault))
        finally:
            self._note(request.method, template, out.status, time.perf_counter() - started)

    async def _traced(self, request: "_Request", match: Match, out: "_Out") -> None:
        """Answer within a span whose parent is the caller's."""
        name = f"ff.{match.route.name}" if match.route else "ff.unknown"
        header = request.headers.get(b"traceparent", b"").decode("latin-1")
        attributes = {"http.request.method": request.method, "http.route": match.template}
        with self.services.traces.span(name, given_parent(header), attributes) as span:
            try:
                await out.write(await self._answer(request, match))
            except FlowFabricError as fault:
                await out.write(reply_of(fault))
            finally:
                span.set_attribute("http.response.status_code", out.status)

    async def _answer(self, request: "_Request", match: Match) -> Reply | EventStream:
        route = match.route
        if match.is_open:
            caller = ANONYMOUS
        else:
            caller = self.services.tokens.caller_of(request.headers.get(b"authorization"))
            CALLER.set(caller.name)
        if route is None:
            raise _no_route(match)
        if self.services.drain.has_begun and not route.is_served_while_draining:
            raise Unavailable(f"backend op unavailable: {route.name}")
        if route.scopes:
            caller.require_scope(route.scopes)
        call: Call[Any, Any] = Call(self.services, route, caller, request.receive)
        call.headers = request.headers
        task: asyncio.Task[Any] | None = asyncio.current_task()
        assert task is not None
        self._deadlines.begin(task, route.timeout_s or REQUEST_S)
        try:
            await self._fill(call, request, match)
            if route.timeout_s is None:
                self._deadlines.end(task)
            return await route.handler(call)
        except asyncio.CancelledError as fault:
            if not self._deadlines.end(task):
                raise
            raise TimedOut(f"timeout: {route.name} took too long; it may be done") from fault
        finally:
            self._deadlines.end(task)

    async def _fill(self, call: Call[Any, Any], request: "_Request", match: Match) -> None:
        """Body size, then path, then query, then body: the first fault is reported."""
        route, headers = call.route, call.headers
        has_body = request.method in _BODY_METHODS
        body = await read_body(call.receive, headers, route) if has_body else b""
        if match.segments:
            call.path = read_path(route.readers, match.segments, self.services.engine.deps.counts)
        query = request.scope["query_string"]
        if route.query is not None:
            call.query = decode_query(route.query, query)
        elif query and route.scopes is not None:
            decode_query(Params, query)
        if route.body is not None:
            if body or not route.may_omit_body:
                check_content_type(headers)
                call.body = decode_body(route.body, body)
            else:
                call.body = decode_body(route.body, b"{}")

    def _request_id(self, headers: dict[bytes, bytes]) -> str:
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        if given and len(given) <= _MAX_ID and given.isascii() and given.isprintable():
            return given
        return f"{self._prefix}-{next(self._ids):x}"

    def _note(self, method: str, template: str, status: int, elapsed: float) -> None:
        if template == METRICS_PATH:
            return
        self.services.observer.served(method, template, status, elapsed)
        if _access.isEnabledFor(logging.DEBUG):
            _access.debug("%s %s %d %.1f ms", method, template, status, elapsed * 1_000)


def _no_route(match: Match) -> FlowFabricError:
    if match.allowed:
        return MethodNotAllowed(", ".join(match.allowed))
    return NotFound("no such route")


class _Request:
    """The parts of an ASGI request that are read more than once."""

    __slots__ = ("headers", "method", "raw_path", "receive", "scope")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self.receive = receive
        self.method: str = scope["method"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.raw_path: bytes = scope.get("raw_path") or scope["path"].encode()


class _Out:
    """Writes one answer, with the headers that every answer to this request has."""

    __slots__ = ("_answer", "_is_head", "_send", "headers", "status")

    def __init__(self, request: "_Request", send: Send, headers: Headers) -> None:
        self._answer: Answer | None = request.scope.get("extensions", {}).get(ANSWER)
        self._send = send
        self._is_head = request.method == "HEAD"
        self.headers = headers
        self.status = 0

    async def write(self, reply: Reply | EventStream) -> None:
        if self.status:
            # The head is sent already: the connection is closed in the middle of this answer.
            return
        self.status = reply.status
        if isinstance(reply, EventStream):
            await self._stream(reply)
            return
        body = reply.body
        length = () if reply.status == 204 else ((b"content-length", b"%d" % len(body)),)
        headers = (*reply.headers, *length, *self.headers)
        body = b"" if self._is_head else body
        if self._answer is None or not self._answer(reply.status, headers, body):
            await self._start(reply.status, headers)
            await self._body(body)

    async def _stream(self, stream: EventStream) -> None:
        try:
            await self._start(stream.status, (*stream.headers, *self.headers))
            if not self._is_head:
                async for lines in stream.lines:
                    await self._body(lines, more=True)
        finally:
            await stream.close()
        await self._body(b"")

    async def _start(self, status: int, headers: Headers) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _body(self, body: bytes, *, more: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


class Deadlines:
    """Cancels requests that take too long.

    Thousands of requests begin and end within a second, so none has a timer of its own: all are
    checked every `LOOK_S`, and a late one is cancelled at most that much too late. Use it from one
    event loop; the task that calls `begin` must call `end`.
    """

    def __init__(self) -> None:
        self._ends: dict[asyncio.Task[object], float] = {}
        self._late: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, task: asyncio.Task[object], seconds: float) -> None:
        loop = task.get_loop()
        self._ends[task] = loop.time() + seconds
        if self._timer is None:
            self._timer = loop.call_later(LOOK_S, self._check, loop)

    def end(self, task: asyncio.Task[object]) -> bool:
        """Whether the task was cancelled for being late, and for nothing else; that is undone."""
        self._ends.pop(task, None)
        if task not in self._late:
            return False
        self._late.discard(task)
        return task.uncancel() == 0

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for task in [task for task, end in self._ends.items() if end <= now]:
            del self._ends[task]
            self._late.add(task)
            task.cancel()
        self._timer = loop.call_later(LOOK_S, self._check, loop) if self._ends else None
