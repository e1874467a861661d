"""Searching, listing and counting executions."""

from typing import Final

import msgspec

from flowfabric.backend.types import Filter, Order
from flowfabric.core.facets import facets
from flowfabric.core.record import Record
from flowfabric.core.states import PUBLIC_STATES
from flowfabric.engine.listings import LaneListing
from flowfabric.engine.snapshots import stored_public_state
from flowfabric.errors import InvalidParameter
from flowfabric.server.call import Call
from flowfabric.server.replies import Reply, ok
from flowfabric.server.route import READ, Routes
from flowfabric.wire import executions as wire

routes: Final = Routes()

_ORDERS: Final[dict[wire.Order, Order]] = {
    "created_desc": "created_newest",
    "created_asc": "created",
    "priority": "view",
}
_DEFAULT_LIMIT: Final = 50


@routes.add("GET /v1/executions", READ, {200: (wire.Found, wire.ExecutionIds, wire.Listed)})
async def list_executions(call: Call[None, wire.SearchQuery]) -> Reply:
    """The ids of a partition, one view of a lane, or else a search."""
    query = call.query
    if not isinstance(query.partition, msgspec.UnsetType):
        return await _list_partition(call, query.partition)
    if query.lane and query.state:
        return await _list_lane(call)
    return await search_executions(call)


@routes.add("GET /v1/executions/search", READ, {200: wire.Found})
async def search_executions(call: Call[None, wire.SearchQuery]) -> Reply:
    """Executions that match, across partitions; a short page may have a next one."""
    query = call.query
    limit = _given(query.limit, _DEFAULT_LIMIT)
    if not 1 <= limit <= 1_000:
        raise InvalidParameter("limit: expected 1..1000")
    wanted = _filter(call)
    if query.order == "priority" and not (query.lane and query.state == ("waiting",)):
        raise InvalidParameter("order: priority needs a lane and state=waiting")
    page = await call.engine.reads.search(wanted, _ORDERS[query.order], query.cursor, limit)
    records = [
        record
        for record in page.records
        if call.caller.may_see(record.namespace) and _has_all(record, query)
    ]
    found = [_found(record) for record in records]
    return ok(wire.Found(items=found, next_cursor=page.next_cursor or None, scanned=page.scanned))


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


def _filter(call: Call[None, wire.SearchQuery]) -> Filter:
    """What the store looks for: of several states or tags the first, the rest is looked at here."""
    query = call.query
    for state in query.state:
        if state not in PUBLIC_STATES:
            raise InvalidParameter(f"state: unknown public state {state!r}")
    tags = [parse_tag(text) for text in query.tag]
    return Filter(
        namespace=_namespace(call),
        lane=query.lane,
        public_state=query.state[0] if len(query.state) == 1 else "",
        kind=query.kind,
        flow_id=query.flow_id,
        worker_instance_id=query.worker,
        tag=tags[0] if tags else None,
        created_from=_given(query.created_after, 0),
        created_before=_given(query.created_before, 0),
    )


def _namespace(call: Call[None, wire.SearchQuery]) -> str:
    """The namespace asked for; a lane without one is of the default one."""
    given = call.query.namespace or ("default" if call.query.lane else "")
    if given:
        call.caller.need_namespace(given)
        return given
    own = call.caller.namespaces
    return next(iter(own)) if own is not None and len(own) == 1 else ""


def parse_tag(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found or not key:
        raise InvalidParameter("tag: expected key=value")
    return key, value


def _has_all(record: Record, query: wire.SearchQuery) -> bool:
    if len(query.state) > 1 and stored_public_state(record) not in query.state:
        return False
    further = (parse_tag(text) for text in query.tag[1:])
    return all(record.tags.get(key) == value for key, value in further)


def _found(record: Record) -> wire.FoundExecution:
    return wire.FoundExecution(
        execution_id=record.execution_id,
        namespace=record.namespace,
        lane_id=record.lane,
        execution_kind=record.kind,
        flow_id=record.flow_id or None,
        public_state=stored_public_state(record),
        blocking_reason=facets(record, None).blocking_reason,
        priority=record.priority,
        attempt_count=record.attempt_count,
        created_at=record.created_at,
        started_at=record.started_at or None,
        completed_at=record.completed_at or None,
        tags=record.tags,
    )
