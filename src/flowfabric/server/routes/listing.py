"""Searching, listing and counting executions."""

from typing import Final

import msgspec

from flowfabric.engine.listings import LaneListing
from flowfabric.errors import InvalidParameter
from flowfabric.operations.executions import Executions, FoundExecution, Search
from flowfabric.operations.types import Page
from flowfabric.server.call import Call
from flowfabric.server.replies import Reply, ok
from flowfabric.server.route import READ, Routes
from flowfabric.wire import executions as wire

routes: Final = Routes()

_DEFAULT_LIMIT: Final = 50


@routes.add(
    "GET /v1/executions", READ, {200: (Page[FoundExecution], wire.ExecutionIds, wire.Listed)}
)
async def list_executions(call: Call[None, wire.SearchQuery]) -> Reply:
    """The ids of a partition, one view of a lane, or else a search."""
    query = call.query
    if not isinstance(query.partition, msgspec.UnsetType):
        return await _list_partition(call, query.partition)
    if query.lane and query.state:
        return await _list_lane(call)
    find = call.engine.use_case(Executions.search)
    return ok(await find(query=search_of(query), visible=call.caller.namespaces))


@routes.add("GET /v1/executions/count", READ, {200: wire.Counts})
async def count_executions(call: Call[None, wire.CountQuery]) -> Reply:
    """How many executions are in each public state."""
    call.caller.need_namespace(call.query.namespace)
    counts = await call.engine.reads.count(call.query.namespace, call.query.lane)
    return ok(wire.Counts(counts=counts))


async def _list_partition(call: Call[None, wire.SearchQuery], partition: int) -> Reply:
    limit = _given(call.query.limit, _DEFAULT_LIMIT)
    page = await call.engine.reads.list_executions(
        partition, call.query.cursor, limit, call.caller.namespaces
    )
    ids = list(page.execution_ids)
    return ok(wire.ExecutionIds(executions=ids, next_cursor=page.next_cursor or None))


async def _list_lane(call: Call[None, wire.SearchQuery]) -> Reply:
    query = call.query
    _check_view(query)
    namespace = query.namespace or "default"
    call.caller.need_namespace(namespace)
    rows = await call.engine.reads.list_lane(
        LaneListing(
            lane=query.lane,
            state=query.state[0],
            namespace=namespace,
            offset=_given(query.offset, 0),
            limit=_given(query.limit, _DEFAULT_LIMIT),
        )
    )
    shown = [
        wire.ListedExecution(**{name: getattr(row, name) for name in row.__struct_fields__})
        for row in rows
    ]
    return ok(wire.Listed(executions=shown, total_returned=len(shown)))


def _given(value: int | msgspec.UnsetType, otherwise: int) -> int:
    return otherwise if isinstance(value, msgspec.UnsetType) else value


def _check_view(query: wire.SearchQuery) -> None:
    """A view of a lane knows one state and no further conditions."""
    for name in ("kind", "flow_id", "worker", "tag", "created_after", "created_before", "cursor"):
        if getattr(query, name):
            raise InvalidParameter(f"{name}: a lane's view has none; use /v1/executions/search")
    if len(query.state) > 1:
        raise InvalidParameter("state: given twice")


def search_of(query: wire.SearchQuery) -> Search:
    names = (*Search.__struct_fields__,)
    given = {name: getattr(query, name) for name in names}
    set_ = {k: v for k, v in given.items() if not isinstance(v, msgspec.UnsetType)}
    try:
        return msgspec.convert(set_, Search)
    except msgspec.ValidationError as fault:
        raise InvalidParameter("limit: expected 1..1000") from fault
