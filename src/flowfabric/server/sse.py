"""Server-Sent Events: how one is written."""

from typing import Any, Final

from flowfabric.errors import FlowFabricError
from flowfabric.server.replies import encode

OPENING: Final = b"retry: 1000\n\n"
BEAT: Final = b": still here\n\n"
# A line now and then keeps proxies from closing a quiet stream.
BEAT_MS: Final = 15_000


def event(name: str, data: Any, own_id: str = "") -> bytes:
    """One event. JSON has no line breaks of its own, so one data line is enough."""
    head = f"id: {own_id}\nevent: {name}\ndata: " if own_id else f"event: {name}\ndata: "
    return b"%b%b\n\n" % (head.encode(), encode(data))


def failed(fault: FlowFabricError) -> bytes:
    return event("error", fault.body())
