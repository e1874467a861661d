"""Input and result of an execution: raw bytes with headers."""

from typing import Annotated, Final
from urllib.parse import quote

import msgspec

from flowfabric.core.record import Record
from flowfabric.engine.executions.waits import WITH_RESULT
from flowfabric.errors import ExecutionNotFound, NotFound
from flowfabric.operations.declaration import READ_OR_WORKER
from flowfabric.operations.execution_queries import (
    ATTEMPT_HEADER,
    COMPLETED_HEADER,
    ENCODING_HEADER,
)
from flowfabric.operations.types import Params
from flowfabric.server.call import Call
from flowfabric.server.replies import Headers, Reply, raw
from flowfabric.server.route import Routes

routes: Final = Routes()

_BYTES: Final = "application/octet-stream"


class WaitQuery(Params, frozen=True, kw_only=True):
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=30_000)] = 0


@routes.add(
    "GET /v1/executions/{execution_id}/result",
    READ_OR_WORKER,
    {200: _BYTES},
    NotFound,
    timeout_s=None,
)
async def get_result(call: Call[None, WaitQuery]) -> Reply:
    """The result as it was given; 404 while it is unfinished or when it was purged."""
    await call.authorize_execution()
    if call.query.wait_ms:
        end = call.engine.waits.until_final(call.execution_id, call.query.wait_ms)
        try:
            async with call.cancellable_wait() as wait:
                await wait.run(end)
        except ExecutionNotFound:
            raise _no_result(call) from None
    seen = await call.engine.deps.store.read(call.execution_id, WITH_RESULT)
    if seen is None or seen.result is None:
        raise _no_result(call)
    return raw(seen.result, *_result_headers(seen.record))


@routes.add(
    "GET /v1/executions/{execution_id}/input", READ_OR_WORKER, {200: _BYTES}, ExecutionNotFound
)
async def get_input(call: Call[None, None]) -> Reply:
    """The input as it was submitted."""
    await call.authorize_execution()
    seen = await call.engine.deps.store.read(call.execution_id, frozenset({"input"}))
    if seen is None:
        raise ExecutionNotFound(call.execution_id)
    return raw(seen.input or b"")


def _result_headers(record: Record) -> Headers:
    """Attempt and encoding of a result; none unless the execution is completed now."""
    if record.state != "completed":
        return ()
    encoding = quote(record.result_encoding, safe="")
    return (
        (ATTEMPT_HEADER.encode(), b"%d" % record.attempt_index),
        (ENCODING_HEADER.encode(), encoding.encode()),
        (COMPLETED_HEADER.encode(), b"%d" % record.completed_at),
    )


def _no_result(call: Call[None, WaitQuery]) -> NotFound:
    return NotFound(f"execution result not found: {call.execution_id}")
