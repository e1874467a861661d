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
    Forbidden,
    MethodNotAllowed,
    NotFound,
    TimedOut,
    Unavailable,
)
from flowfabric.operations.types import Params
from flowfabric.server.access import ANONYMOUS, Caller, Cors, OriginCheck
from flowfabric.server.call import Call, Services
from flowfabric.server.decoding import (
    ClientDisconnected,
    Receive,
    decode_body,
    decode_query,
    read_body,
)
from flowfabric.server.openapi import document_of
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
        self._origin_check = OriginCheck(services.settings, services.tokens)
        self._cors = Cors(services.settings, services.tokens)
        self._deadlines = Deadlines()
        self._ids = count(1)
        self._prefix = urandom(6).hex()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _refuse(scope["type"], send)
            return
        method, headers = scope["method"], dict(scope["headers"])
        given = headers.get(b"x-request-id")
        request_id = (given and _usable_id(given)) or f"{self._prefix}-{next(self._ids):x}"
        REQUEST_ID.set(request_id)
        own: Headers = ((b"x-request-id", request_id.encode()),)
        if self.services.drain.has_begun:
            own += (CLOSE,)
        raw_path = scope.get("raw_path") or scope["path"].encode()
        request = _Request(scope, receive, send, method, raw_path, headers, own)
        try:
            self._origin_check.check(method, headers, (scope.get("server") or ("",))[0])
        except FlowFabricError as fault:
            await request.write(reply_of(fault))
            return
        if self._cors.is_on and raw_path != _METRICS:
            if method == "OPTIONS" and (asked := self._cors.preflight(headers)):
                await request.write(asked)
                return
            request.own_headers += self._cors.headers(headers.get(b"origin"))
        await self._respond(request)

    async def _respond(self, request: "_Request") -> None:
        started = time.perf_counter()
        template = "unknown"
        try:
            match = self._router.find(request.method, request.raw_path)
            template = match.template
            if self.services.traces.is_on:
                await self._traced(request, match)
            else:
                await request.write(await self._answer(request, match))
        except FlowFabricError as fault:
            await request.write(reply_of(fault))
        except ClientDisconnected:
            return
        except Exception as fault:
            await request.write(bug(fault))
        finally:
            self._note(request, template, time.perf_counter() - started)

    async def _traced(self, request: "_Request", match: Match) -> None:
        """Answer within a span whose parent is the caller's."""
        name = f"ff.{match.route.name}" if match.route else "ff.unknown"
        header = request.headers.get(b"traceparent", b"").decode("latin-1")
        attributes = {"http.request.method": request.method, "http.route": match.template}
        with self.services.traces.span(name, given_parent(header), attributes) as span:
            try:
                await request.write(await self._answer(request, match))
            except FlowFabricError as fault:
                await request.write(reply_of(fault))
            finally:
                span.set_attribute("http.response.status_code", request.status)

    async def _answer(self, request: "_Request", match: Match) -> Reply | EventStream:
        services, route = self.services, match.route
        if match.is_open:
            caller = ANONYMOUS
        else:
            caller = services.tokens.caller_of(request.headers.get(b"authorization"))
            CALLER.set(caller.name)
        if route is None:
            raise _no_route(match)
        if services.drain.has_begun and not route.is_served_while_draining:
            raise Unavailable(f"backend op unavailable: {route.name}")
        if route.scopes and caller.scopes.isdisjoint(route.scopes):
            raise Forbidden(f"scope {' or '.join(sorted(route.scopes))}")
        task: asyncio.Task[Any] | None = asyncio.current_task()
        assert task is not None
        deadlines = self._deadlines
        deadlines.ends[task] = task.get_loop().time() + (route.timeout_s or REQUEST_S)
        if not deadlines.are_watched:
            deadlines.watch(task.get_loop())
        try:
            call = await self._read(request, route, caller, match.segments)
            if route.timeout_s is None:
                deadlines.ends.pop(task, None)
            return await route.handler(call)
        except asyncio.CancelledError as fault:
            if not deadlines.forgive(task):
                raise
            raise TimedOut(f"timeout: {route.name} took too long; it may be done") from fault
        finally:
            if deadlines.ends.pop(task, None) is None:
                deadlines.forgive(task)

    async def _read(
        self, request: "_Request", route: Route, caller: Caller, segments: list[str]
    ) -> Call[Any, Any]:
        """Body size, then path, then query, then body: the first fault is reported."""
        services, headers, receive = self.services, request.headers, request.receive
        has_body = request.method in _BODY_METHODS
        sent = await read_body(receive, headers, route) if has_body else b""
        counts = services.engine.deps.counts
        path = read_path(route.readers, segments, counts) if segments else {}
        query, given = None, request.scope["query_string"]
        if route.query is not None:
            query = decode_query(route.query, given)
        elif given and route.scopes is not None:
            decode_query(Params, given)
        body = None if route.body is None else decode_body(route.body, headers, sent)
        is_traced = b"traceparent" in headers or services.traces.is_on
        return Call(
            services,
            services.engine,
            route,
            caller,
            receive,
            headers,
            self._traceparent(headers) if is_traced else "",
            path,
            query,
            body,
        )

    def _traceparent(self, headers: dict[bytes, bytes]) -> str:
        sent = given_parent(headers.get(b"traceparent", b"").decode("latin-1"))
        return self.services.traces.current(sent)

    def _note(self, request: "_Request", template: str, elapsed: float) -> None:
        if template == METRICS_PATH:
            return
        method, status = request.method, request.status
        self.services.observer.served(method, template, status, elapsed)
        if _access.isEnabledFor(logging.DEBUG):
            _access.debug("%s %s %d %.1f ms", method, template, status, elapsed * 1_000)


async def _refuse(kind: str, send: Send) -> None:
    if kind != "websocket":
        raise NotImplementedError(kind)
    await send({"type": "websocket.close", "code": 1000})


def _usable_id(given: bytes) -> str:
    """The id that the caller has given the request; "" when no log should have it."""
    text = given.decode("latin-1")
    return text if len(text) <= _MAX_ID and text.isascii() and text.isprintable() else ""


def _no_route(match: Match) -> FlowFabricError:
    if match.allowed:
        return MethodNotAllowed(", ".join(match.allowed))
    return NotFound("no such route")


class _Request(msgspec.Struct):
    """One ASGI request, and how its answer is written: with `own_headers`, whatever it is."""

    scope: Scope
    receive: Receive
    send: Send
    method: str
    raw_path: bytes
    headers: dict[bytes, bytes]
    own_headers: Headers
    # Of the answer; 0 before it.
    status: int = 0

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
        headers = (*reply.headers, *length, *self.own_headers)
        body = b"" if self.method == "HEAD" else body
        answer: Answer | None = self.scope.get("extensions", {}).get(ANSWER)
        if answer is None or not answer(reply.status, headers, body):
            await self._start(reply.status, headers)
            await self._body(body)

    async def _stream(self, stream: EventStream) -> None:
        try:
            await self._start(stream.status, (*stream.headers, *self.own_headers))
            if self.method != "HEAD":
                async for lines in stream.lines:
                    await self._body(lines, more=True)
        finally:
            await stream.close()
        await self._body(b"")

    async def _start(self, status: int, headers: Headers) -> None:
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def _body(self, body: bytes, *, more: bool = False) -> None:
        await self.send({"type": "http.response.body", "body": body, "more_body": more})


class Deadlines:
    """Cancels requests that take too long: `ends` has the instant by which each task must end.

    Thousands of requests begin and end within a second, so none has a timer of its own: all are
    checked every `LOOK_S`, and a late one is cancelled at most that much too late. Use it from one
    event loop; a task that enters itself must leave, or be forgiven.
    """

    def __init__(self) -> None:
        self.ends: dict[asyncio.Task[object], float] = {}
        self.are_watched = False
        self._late: set[asyncio.Task[object]] = set()

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self.are_watched = True
        loop.call_later(LOOK_S, self._check, loop)

    def forgive(self, task: asyncio.Task[object]) -> bool:
        """Whether the task was cancelled for being late, and for nothing else; that is undone."""
        if task not in self._late:
            return False
        self._late.discard(task)
        return task.uncancel() == 0

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for task in [task for task, end in self.ends.items() if end <= now]:
            del self.ends[task]
            self._late.add(task)
            task.cancel()
        self.are_watched = False
        if self.ends:
            self.watch(loop)
