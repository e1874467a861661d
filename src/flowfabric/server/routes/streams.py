"""Output of attempts: ranges, tails, summaries, and the same as Server-Sent Events."""

from typing import Final

import msgspec

from flowfabric.engine.streams import StreamPage, StreamRange, Tail
from flowfabric.errors import ExecutionNotFound, InvalidParameter, NotFound, ResourceExhausted
from flowfabric.server.call import Call
from flowfabric.server.following import Follower
from flowfabric.server.frames import shown_frame
from flowfabric.server.replies import EventStream, Reply, ok
from flowfabric.server.route import READ, READ_OR_WORKER, Routes
from flowfabric.wire import streams as wire

routes: Final = Routes()

_MOST_FRAMES: Final = 1_000
_MOST_BLOCK_MS: Final = 30_000
_STREAM: Final = "/v1/executions/{execution_id}/attempts/{idx}"


@routes.add(
    f"GET {_STREAM}/stream",
    READ_OR_WORKER,
    {200: wire.Frames},
    ResourceExhausted,
)
async def read_stream(call: Call[None, wire.RangeQuery]) -> Reply:
    """A range of frames; both ends are included."""
    query = call.query
    _check_limit(query.limit, "from")
    await call.need_execution(call.execution_id)
    page = await call.engine.streams.read_stream(
        StreamRange(
            execution_id=call.execution_id,
            attempt_index=_index(call.path["idx"]),
            start=query.start,
            end=query.end,
            count_limit=query.limit,
            visibility=query.visibility,
        )
    )
    return ok(_frames(page))


@routes.add(
    f"GET {_STREAM}/stream/tail",
    READ_OR_WORKER,
    {200: wire.Frames},
    ResourceExhausted,
    timeout_s=None,
)
async def tail_stream(call: Call[None, wire.TailQuery]) -> Reply:
    """Frames behind a position; with none there, those that come in time."""
    query = call.query
    _check_limit(query.limit, "after")
    if query.block_ms > _MOST_BLOCK_MS:
        raise InvalidParameter(f"block_ms exceeds {_MOST_BLOCK_MS}ms ceiling")
    await call.need_execution(call.execution_id)
    asked = Tail(
        execution_id=call.execution_id,
        attempt_index=_index(call.path["idx"]),
        after=query.after,
        block_ms=query.block_ms,
        count_limit=query.limit,
        visibility=query.visibility,
    )
    if not asked.block_ms:
        return ok(_frames(await call.engine.streams.tail_stream(asked)))
    async with call.leaving() as leaving:
        return ok(_frames(await leaving.wait_for(call.engine.streams.tail_stream(asked))))


@routes.add(f"GET {_STREAM}/summary", READ_OR_WORKER, {200: wire.Summary}, NotFound)
async def read_summary(call: Call[None, None]) -> Reply:
    """The rolling document of an attempt."""
    await call.need_execution(call.execution_id)
    index = _index(call.path["idx"])
    found = await call.engine.streams.read_summary(call.execution_id, index)
    if found is None:
        raise NotFound(f"summary not found: {call.execution_id} attempt {index}")
    return ok(
        {
            "document": msgspec.Raw(found.document),
            "version": found.version,
            "patch_kind": found.patch_kind,
            "last_updated_ms": found.last_updated_ms,
            "first_applied_ms": found.first_applied_ms,
        }
    )


@routes.add(
    f"GET {_STREAM}/stream/sse",
    READ,
    {200: "text/event-stream"},
    ExecutionNotFound,
    ResourceExhausted,
    timeout_s=None,
)
async def follow_stream(call: Call[None, wire.SseQuery]) -> EventStream:
    """Frames as they come, until the stream closes; `latest` goes on with the next attempt."""
    await call.need_execution(call.execution_id)
    seen = await call.engine.deps.store.read(call.execution_id)
    if seen is None:
        raise ExecutionNotFound(call.execution_id)
    return EventStream(Follower(call, seen.record.attempt_index).lines(), call.services.sse)


def _index(text: str) -> int:
    if text == "latest":
        raise InvalidParameter("idx: expected the index of an attempt")
    return int(text)


def _check_limit(limit: int, cursor: str) -> None:
    if limit < 1:
        raise InvalidParameter("limit must be >= 1")
    if limit > _MOST_FRAMES:
        raise InvalidParameter(f"limit exceeds REST ceiling {_MOST_FRAMES}; paginate via {cursor}")


def _frames(page: StreamPage) -> wire.Frames:
    frames = [shown_frame(one) for one in page.frames]
    return wire.Frames(
        frames=frames,
        count=len(frames),
        next_after=page.next_after,
        closed_at=page.closed_at,
        closed_reason=page.closed_reason,
    )
