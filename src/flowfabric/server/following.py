"""Following the output of an attempt, or of one attempt after the other, as Server-Sent Events."""

from collections.abc import AsyncGenerator
from typing import Final

from flowfabric.core.states import FINAL
from flowfabric.core.streams import tail_position
from flowfabric.errors import FlowFabricError, InvalidInput, InvalidParameter, NotFound
from flowfabric.operations.streams import FramePage, Tail, Visibility
from flowfabric.operations.types import Answer, Params
from flowfabric.server.call import Call
from flowfabric.server.reading import ClientDisconnected
from flowfabric.server.sse import BEAT, BEAT_MS, OPENING, event, failed
from flowfabric.server.waiting import CancellableWait

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


class Follower:
    """Where a reader stands in the output of an execution, and what it is sent from there on.

    `current` is the attempt the execution is at; a reader of `latest` begins there, or where its
    last event was, and goes on with the next attempt whenever one begins.
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
                yield event("frame", stored, self._place(stored.id))
            self._after = page.next_after
            if not page.closed_at:
                if not page.frames:
                    yield BEAT
                continue
            if page.frames:
                # What came between the last frame and the close is read before the end is sent.
                continue
            if self._follows and await self._went_on(wait):
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
                block_ms=BEAT_MS,
                count_limit=_PAGE,
                visibility=self._call.query.visibility,
            ),
        )

    def _begin(self, current: int) -> tuple[int, str]:
        """The last event a client saw wins over where it asks to begin."""
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

    async def _went_on(self, wait: CancellableWait) -> bool:
        """Move on to the next attempt; False when there will be none."""
        engine, own = self._call.engine, self._call.execution_id
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
            await wait.run(engine.events.wait(1.0))

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
