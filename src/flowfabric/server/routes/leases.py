"""Leases that have ended: whose they were, and what they were for."""

from typing import Final

import msgspec

from flowfabric.engine.listings import ExpiredLeasesQuery, Place
from flowfabric.errors import InvalidParameter
from flowfabric.server.call import Call
from flowfabric.server.replies import Reply, ok
from flowfabric.server.route import READ, Routes
from flowfabric.wire import leases as wire

routes: Final = Routes()


@routes.add("GET /v1/leases/expired", READ, {200: wire.ExpiredLeases})
async def list_expired_leases(call: Call[None, wire.ExpiredLeasesQuery]) -> Reply:
    """Leases that ran out, marked or not, and leases that were taken; the oldest end first."""
    query = call.query
    call.caller.need_namespace(query.namespace)
    page = await call.engine.reads.list_expired_leases(
        ExpiredLeasesQuery(
            as_of=None if isinstance(query.as_of, msgspec.UnsetType) else query.as_of,
            after=_place(query.cursor),
            limit=query.limit,
            namespace=query.namespace,
        )
    )
    leases = [msgspec.convert(one, wire.ExpiredLease, from_attributes=True) for one in page.leases]
    return ok(wire.ExpiredLeases(leases=leases, next_cursor=_cursor(page.next_cursor)))


def _cursor(place: Place | None) -> str | None:
    return None if place is None else f"{place[0]}:{place[1]}"


def _place(cursor: str) -> Place | None:
    if not cursor:
        return None
    instant, _, execution_id = cursor.partition(":")
    if not (instant.isascii() and instant.isdigit() and len(instant) <= 16 and execution_id):
        raise InvalidParameter("cursor: not one of this route")
    return int(instant), execution_id
