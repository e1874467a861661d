"""Following the output of an attempt, or of one attempt after the other, as Server-Sent Events."""

from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from flowfabric.core.states import FINAL
from flowfabric.core.streams import tail_position
from flowfabric.engine.streams import StreamPage, Tail
from flowfabric.errors import FlowFabricError, InvalidInput, InvalidParameter
from flowfabric.server.call import Call
from flowfabric.server.frames import shown_frame
from flowfabric.server.reading import ClientGone
from flowfabric.server.sse import BEAT, BEAT_MS, OPENING, event, failed
from flowfabric.server.waiting import Leaving
from flowfabric.wire import streams as wire

_START: Final = "0-0"
_PAGE: Final = 100


class Follower:
    """Where a reader stands in the output of an execution, and what it is sent from there on.

    `current` is the attempt the execution is at; a reader of `latest` begins there, or where its
    last event was, and goes on with the next attempt whenever one begins.
    """

    def __init__(self, call: Call[None, wire.SseQuery], current: int) -> None:
        self._call = call
        self._follows = call.path["idx"] == "latest"
        self._index, self._after = self._begin(current)
        _check_position(self._after)

    async def lines(self) -> AsyncGenerator[bytes, None]:
        yield OPENING
        async with self._call.leaving() as leaving:
            try:
                async for line in self._events(leaving):
                    yield line
            except ClientGone:
                return
            except FlowFabricError as fault:
                yield failed(fault)

    async def _events(self, leaving: Leaving) -> AsyncGenerator[bytes, None]:
        if self._call.query.summary and (line := await self._summary()):
            yield line
        if self._follows:
            yield await self._attempt()
        while True:
            page = await leaving.wait_for(self._page())
            for stored in page.frames:
                yield event("frame", shown_frame(stored), self._place(stored.id))
            self._after = page.next_after
            if page.closed_at is None:
                if not page.frames:
                    yield BEAT
                continue
            if page.frames:
                # What came between the last frame and the close is read before the end is told.
                continue
            if self._follows and await self._went_on(leaving):
                yield await self._attempt()
                continue
            closed = wire.ClosedEvent(
                closed_at=page.closed_at, closed_reason=page.closed_reason or ""
            )
            yield event("closed", closed)
            return

    async def _page(self) -> StreamPage:
        return await self._call.engine.streams.follow_stream(
            Tail(
                execution_id=self._call.execution_id,
                attempt_index=self._index,
                after=self._after,
                block_ms=BEAT_MS,
                count_limit=_PAGE,
                visibility=self._call.query.visibility,
            )
        )

    def _begin(self, current: int) -> tuple[int, str]:
        """The last event a client saw wins over where it asks to begin."""
        last = self._call.headers.get(b"last-event-id", b"").decode("latin-1")
        given = last or self._call.query.after
        if not self._follows:
            return int(self._call.path["idx"]), given or _START
        index, slash, after = given.partition("/")
        if not slash:
            return current, given or _START
        if not (index.isascii() and index.isdigit() and len(index) <= 10):
            raise InvalidParameter("after: expected <attempt>/<frame id>")
        return int(index), after

    def _place(self, frame_id: str) -> str:
        return f"{self._index}/{frame_id}" if self._follows else frame_id

    async def _went_on(self, leaving: Leaving) -> bool:
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
            await leaving.wait_for(engine.events.wait(1.0))

    async def _attempt(self) -> bytes:
        found = await self._call.engine.reads.attempts(self._call.execution_id)
        kind = next((one.type for one in found.attempts if one.index == self._index), "")
        told = wire.AttemptEvent(attempt_index=self._index, attempt_type=kind or "initial")
        return event("attempt", told)

    async def _summary(self) -> bytes | None:
        streams, own = self._call.engine.streams, self._call.execution_id
        found = await streams.read_summary(own, self._index)
        if found is None:
            return None
        return event("summary", {"version": found.version, "document": msgspec.Raw(found.document)})


def _check_position(after: str) -> None:
    try:
        tail_position(after)
    except InvalidInput as fault:
        raise InvalidParameter(f"after: {fault.detail}") from None
