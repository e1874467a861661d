"""What a search may ask for, checked before a store is asked."""

from typing import get_args

from flowfabric.backend.types import Filter, Order
from flowfabric.core.ids import check_lane, check_namespace, check_text, parse_uuid
from flowfabric.core.partitions import PartitionCounts
from flowfabric.core.states import PUBLIC_STATES, STATES
from flowfabric.engine.checking import whole
from flowfabric.errors import InvalidInput


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
