"""What a search may ask for, checked before a store is asked, and what it shows."""

from typing import Final, get_args

from flowfabric.backend.types import Filter, Order
from flowfabric.core.facets import facets
from flowfabric.core.ids import check_lane, check_namespace, check_text, parse_uuid
from flowfabric.core.partitions import PartitionCounts
from flowfabric.core.record import Record
from flowfabric.core.states import PUBLIC_STATES, STATES
from flowfabric.engine.checking import whole
from flowfabric.engine.executions.snapshots import stored_public_state
from flowfabric.errors import Forbidden, InvalidInput
from flowfabric.operations import execution_queries
from flowfabric.operations.execution_queries import FoundExecution, Search

ORDERS: Final[dict[execution_queries.Order, Order]] = {
    "created_desc": "created_newest",
    "created_asc": "created",
    "priority": "view",
}


def check_search(wanted: Filter, order: Order, counts: PartitionCounts) -> None:
    _check_names(wanted)
    if wanted.public_state and wanted.public_state not in PUBLIC_STATES:
        raise InvalidInput(f"state: unknown public state {wanted.public_state!r}")
    if wanted.state and wanted.state not in STATES and wanted.state != "terminal":
        raise InvalidInput(f"state: unknown state {wanted.state!r}")
    whole(wanted.created_from, "created_from")
    whole(wanted.created_before, "created_before")
    if wanted.partition is not None:
        whole(wanted.partition, "partition", 0, counts.flow - 1)
    _check_order(wanted, order)


def _check_names(wanted: Filter) -> None:
    if wanted.namespace:
        check_namespace(wanted.namespace)
    if wanted.lane:
        check_lane(wanted.lane)
        if not wanted.namespace:
            raise InvalidInput("lane: a lane belongs to a namespace; name both")
    if wanted.flow_id:
        parse_uuid(wanted.flow_id, "flow_id")
    check_text(wanted.kind, "kind", 1024)
    check_text(wanted.worker_instance_id, "worker_instance_id", 256)


def _check_order(wanted: Filter, order: Order) -> None:
    if order not in get_args(Order):
        raise InvalidInput(f"order: expected one of {', '.join(get_args(Order))}, got {order!r}")
    if order == "view" and not (wanted.lane and (wanted.state or wanted.public_state)):
        raise InvalidInput("order: a lane's own order needs a lane and a state")


def filter_of(query: Search, visible: frozenset[str] | None) -> Filter:
    """What the store looks for: of several states or tags the first, the rest is looked at here."""
    for state in query.state:
        if state not in PUBLIC_STATES:
            raise InvalidInput(f"state: unknown public state {state!r}")
    if query.order == "priority" and not (query.lane and query.state == ("waiting",)):
        raise InvalidInput("order: priority needs a lane and state=waiting")
    tags = [parse_tag(text) for text in query.tag]
    return Filter(
        namespace=_namespace(query, visible),
        lane=query.lane,
        public_state=query.state[0] if len(query.state) == 1 else "",
        kind=query.kind,
        flow_id=query.flow_id,
        worker_instance_id=query.worker,
        tag=tags[0] if tags else None,
        created_from=query.created_after,
        created_before=query.created_before,
    )


def _namespace(query: Search, visible: frozenset[str] | None) -> str:
    """The namespace asked for; a lane without one is of the default one."""
    given = query.namespace or ("default" if query.lane else "")
    if given and visible is not None and given not in visible:
        raise Forbidden(f"namespace {given}")
    return given or (next(iter(visible)) if visible is not None and len(visible) == 1 else "")


def parse_tag(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found or not key:
        raise InvalidInput("tag: expected key=value")
    return key, value


def is_found(record: Record, query: Search, visible: frozenset[str] | None) -> bool:
    if visible is not None and record.namespace not in visible:
        return False
    if len(query.state) > 1 and stored_public_state(record) not in query.state:
        return False
    further = (parse_tag(text) for text in query.tag[1:])
    return all(record.tags.get(key) == value for key, value in further)


def found_of(record: Record) -> FoundExecution:
    return FoundExecution(
        execution_id=record.execution_id,
        namespace=record.namespace,
        lane_id=record.lane,
        execution_kind=record.kind,
        flow_id=record.flow_id,
        public_state=stored_public_state(record),
        blocking_reason=facets(record, None).blocking_reason,
        priority=record.priority,
        attempt_count=record.attempt_count,
        created_at=record.created_at,
        started_at=record.started_at,
        completed_at=record.completed_at,
        tags=record.tags,
    )
