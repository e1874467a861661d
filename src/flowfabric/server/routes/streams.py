"""Routes of attempt output and of events: smaller pages than the engine allows, and Server-Sent
Events."""

from collections.abc import AsyncGenerator
from contextlib import closing
from typing import Any, Final

import msgspec

from flowfabric.core.states import FINAL
from flowfabric.core.streams import tail_position
from flowfabric.engine.streams.tails import SAFETY_NET_S
from flowfabric.errors import (
    ExecutionNotFound,
    FlowFabricError,
    InvalidInput,
    InvalidParameter,
    NotFound,
    ResourceExhausted,
)
from flowfabric.operations.declaration import READ, Operation
from flowfabric.operations.events import Event, EventQuery
from flowfabric.operations.streams import (
    FramePage,
    StoredFrame,
    StreamRange,
    Streams,
    Tail,
    Visibility,
)
from flowfabric.operations.types import Answer, Page, Params
from flowfabric.server.call import Call
from flowfabric.server.decoding import ClientDisconnected
from flowfabric.server.operations import authorize, route_of
from flowfabric.server.replies import (
    HEARTBEAT,
    HEARTBEAT_MS,
    OPENING,
    EventStream,
    Reply,
    event,
    failed,
)
from flowfabric.server.route import Route, Routes
from flowfabric.server.waits import CancellableWait

routes: Final = Routes()

_MAX_FRAMES: Final = 1_000
_MAX_BLOCK_MS: Final = 30_000


def _limited(declared: Operation[..., Any], cursor: str) -> Route:
    """The route of a read with a smaller page size than the engine allows; `cursor` names the
    parameter of the next page."""
    route = route_of(declared)

    async def handle(call: Call[None, StreamRange | Tail]) -> Reply | EventStream:
        _check(call.query, cursor)
        return await route.handler(call)

    handle.__doc__ = route.summary
    return msgspec.structs.replace(route, handler=handle)


def _check(asked: StreamRange | Tail, cursor: str) -> None:
    if isinstance(asked, Tail) and asked.block_ms > _MAX_BLOCK_MS:
        raise InvalidParameter(f"block_ms exceeds {_MAX_BLOCK_MS}ms ceiling")
    if asked.count_limit < 1:
        raise InvalidParameter("limit must be >= 1")
    if asked.count_limit > _MAX_FRAMES:
        raise InvalidParameter(f"limit exceeds REST ceiling {_MAX_FRAMES}; paginate via {cursor}")


LIMITED: Final[tuple[Route, ...]] = (
    _limited(Streams.read_stream, "from"),
    _limited(Streams.tail_stream, "after"),
)


# ---- output as Server-Sent Events

_START: Final = "0-0"
_PAGE: Final = 100


class SseQuery(Params, frozen=True, kw_only=True):
    after: str = ""
    visibility: Visibility = "all"
    summary: bool = False


class _AttemptBegan(Answer, frozen=True, kw_only=True):
    attempt_index: int
    attempt_type: str


class _Closed(Answer, frozen=True, kw_only=True):
    closed_at: int
    closed_reason: str


class _TextFrame(StoredFrame, frozen=True):
    """A frame of text, for readers that want no base64."""

    text: str


def _readable(stored: StoredFrame) -> StoredFrame:
    frame = stored.frame
    if frame.encoding != "utf8":
        return stored
    try:
        return _TextFrame(stored.id, frame, str(frame.payload, "utf-8"))
    except UnicodeDecodeError:
        # The encoding is what the writer says; nobody has checked it.
        return stored


class Follower:
    """A reader of the output of an execution, and its position.

    `current` is the index of the current attempt. A reader of `latest` begins there, or after its
    last event, and continues with each further attempt.
    """

    def __init__(self, call: Call[None, SseQuery], current: int) -> None:
        self._call = call
        self._follows = call.path["attempt_index"] == "latest"
        self._index, self._after = self._begin(current)
        _check_position(self._after)

    async def lines(self) -> AsyncGenerator[bytes, None]:
        yield OPENING
        async with self._call.cancellable_wait() as wait:
            try:
                async for line in self._events(wait):
                    yield line
            except ClientDisconnected:
                return
            except FlowFabricError as fault:
                yield failed(fault)

    async def _events(self, wait: CancellableWait) -> AsyncGenerator[bytes, None]:
        if self._call.query.summary and (line := await self._summary()):
            yield line
        if self._follows:
            yield await self._attempt()
        while True:
            page = await wait.run(self._page())
            for stored in page.frames:
                yield event("frame", _readable(stored), self._place(stored.id))
            self._after = page.next_after
            if not page.closed_at:
                if not page.frames:
                    yield HEARTBEAT
                continue
            if page.frames:
                # Frames may have come between this page and the close.
                continue
            if self._follows and await self._next_attempt(wait):
                yield await self._attempt()
                continue
            closed = _Closed(closed_at=page.closed_at, closed_reason=page.closed_reason)
            yield event("closed", closed)
            return

    async def _page(self) -> FramePage:
        return await self._call.engine.streams.follow_stream(
            self._call.execution_id,
            self._index,
            Tail(
                after=self._after,
                block_ms=HEARTBEAT_MS,
                count_limit=_PAGE,
                visibility=self._call.query.visibility,
            ),
        )

    def _begin(self, current: int) -> tuple[int, str]:
        """The start: after `Last-Event-ID` if the client sent it, else after `after`."""
        last = self._call.headers.get(b"last-event-id", b"").decode("latin-1")
        given = last or self._call.query.after
        if not self._follows:
            return int(self._call.path["attempt_index"]), given or _START
        index, slash, after = given.partition("/")
        if not slash:
            return current, given or _START
        if not (index.isascii() and index.isdigit() and len(index) <= 10):
            raise InvalidParameter("after: expected <attempt>/<frame id>")
        return int(index), after

    def _place(self, frame_id: str) -> str:
        return f"{self._index}/{frame_id}" if self._follows else frame_id

    async def _next_attempt(self, wait: CancellableWait) -> bool:
        """Continue with the next attempt; False when there will be none."""
        engine, own = self._call.engine, self._call.execution_id
        with closing(engine.events.watch(own)) as watch:
            while True:
                seen = await engine.deps.store.read(own)
                if seen is None:
                    return False
                record = seen.record
                if record.attempt_count > self._index + 1:
                    self._index += 1
                    self._after = _START
                    return True
                if record.state in FINAL:
                    return False
                await wait.run(watch.wait(SAFETY_NET_S))

    async def _attempt(self) -> bytes:
        found = await self._call.engine.reads.attempts(self._call.execution_id)
        kind = next((one.type for one in found.attempts if one.index == self._index), "")
        began = _AttemptBegan(attempt_index=self._index, attempt_type=kind or "initial")
        return event("attempt", began)

    async def _summary(self) -> bytes | None:
        streams, own = self._call.engine.streams, self._call.execution_id
        try:
            found = await streams.read_summary(own, self._index)
        except NotFound:
            return None
        return event("summary", {"version": found.version, "document": found.document})


def _check_position(after: str) -> None:
    try:
        tail_position(after)
    except InvalidInput as fault:
        raise InvalidParameter(f"after: {fault.detail}") from None


@routes.add(
    "GET /v1/executions/{execution_id}/attempts/{attempt_index}/stream/sse",
    READ,
    {200: "text/event-stream"},
    ExecutionNotFound,
    ResourceExhausted,
    timeout_s=None,
)
async def follow_stream(call: Call[None, SseQuery]) -> EventStream:
    """Frames as they come, until the stream closes; `latest` goes on with the next attempt. A frame
    with encoding `utf8` has its `text` beside the payload."""
    await call.authorize_execution()
    seen = await call.engine.deps.store.read(call.execution_id)
    if seen is None:
        raise ExecutionNotFound(call.execution_id)
    lines = Follower(call, seen.record.attempt_index).lines()
    return EventStream(lines, call.services.sse, call.share)


# ---- events

_PAGES: Final = route_of(Streams.read_events)


async def read_events(call: Call[None, EventQuery]) -> Reply | EventStream:
    if b"text/event-stream" not in call.headers.get(b"accept", b""):
        return await _PAGES.handler(call)
    await authorize(Streams.read_events, call, {"asked": call.query})
    last = call.headers.get(b"last-event-id", b"").decode("latin-1")
    feed = _Feed(call, last or call.query.cursor)
    lines = feed.lines(await feed.page(0))
    return EventStream(lines, call.services.sse, call.share)


read_events.__doc__ = _PAGES.summary
EVENTS: Final[Route] = msgspec.structs.replace(_PAGES, handler=read_events)


class _Feed:
    """A reader of events, and its position."""

    def __init__(self, call: Call[Any, EventQuery], cursor: str) -> None:
        self._call = call
        self._cursor = cursor

    async def page(self, wait_ms: int) -> Page[Event]:
        """The next events; refuses a cursor of another store."""
        call = self._call
        asked = msgspec.structs.replace(call.query, cursor=self._cursor, wait_ms=wait_ms)
        read = call.engine.use_case(Streams.read_events)
        page: Page[Event] = await read(asked, visible=call.caller.namespaces)
        return page

    async def lines(self, page: Page[Event]) -> AsyncGenerator[bytes, None]:
        yield OPENING
        async with self._call.cancellable_wait() as wait:
            try:
                while True:
                    for item in page.items:
                        yield event(item.family, item, item.cursor)
                    self._cursor = page.next_cursor
                    page = await wait.run(self.page(HEARTBEAT_MS))
                    if not page.items:
                        yield HEARTBEAT
            except ClientDisconnected:
                return
            except FlowFabricError as fault:
                yield failed(fault)
