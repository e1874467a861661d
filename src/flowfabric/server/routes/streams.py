"""Output of attempts: what REST asks beyond the declared operations, and Server-Sent Events."""

from typing import Any, Final

import msgspec

from flowfabric.errors import ExecutionNotFound, InvalidParameter, ResourceExhausted
from flowfabric.operations.declaration import READ, Operation
from flowfabric.operations.streams import StreamRange, Streams, Tail
from flowfabric.server.call import Call
from flowfabric.server.following import Follower, SseQuery
from flowfabric.server.operations import route_of
from flowfabric.server.replies import EventStream, Reply
from flowfabric.server.route import Route, Routes

routes: Final = Routes()

_MAX_FRAMES: Final = 1_000
_MAX_BLOCK_MS: Final = 30_000


def _limited(declared: Operation[..., Any], cursor: str) -> Route:
    """The route of a read whose answers REST keeps smaller than the engine does; `cursor` is the
    parameter to read on with."""
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


@routes.add(
    "GET /v1/executions/{execution_id}/attempts/{attempt_index}/stream/sse",
    READ,
    {200: "text/event-stream"},
    ExecutionNotFound,
    ResourceExhausted,
    timeout_s=None,
)
async def follow_stream(call: Call[None, SseQuery]) -> EventStream:
    """Frames as they come, until the stream closes; `latest` goes on with the next attempt."""
    await call.authorize_execution(call.execution_id)
    seen = await call.engine.deps.store.read(call.execution_id)
    if seen is None:
        raise ExecutionNotFound(call.execution_id)
    return EventStream(Follower(call, seen.record.attempt_index).lines(), call.services.sse)
