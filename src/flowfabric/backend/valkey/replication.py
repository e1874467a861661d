"""Waiting until a replica has what was written, for stores that were asked to."""

import asyncio
import logging
from typing import Final

from flowfabric.backend.valkey.node import Node
from flowfabric.errors import TransportError

_log = logging.getLogger("flowfabric.backend.valkey")
# Functions whose changes are worth the wait.
REPLICATED: Final = frozenset(
    {"create", "graph", "apply", "cancel_flow", "claim", "lease", "commit"}
)
_WAIT_MS: Final = 1_000


class Replication:
    """A replica that lags is a warning, never an error: what was written, was written."""

    def __init__(self) -> None:
        self._confirming: dict[Node, asyncio.Task[None]] = {}

    async def confirm(self, node: Node) -> None:
        """Calls that end in one turn of the loop share a wait: it covers all their connection
        wrote."""
        confirming = self._confirming.get(node)
        if confirming is None:
            confirming = self._confirming[node] = asyncio.ensure_future(_confirm(node))
            asyncio.get_running_loop().call_soon(self._confirming.pop, node, None)
        await asyncio.shield(confirming)


async def _confirm(node: Node) -> None:
    try:
        count = await node.run("WAIT", 1, _WAIT_MS)
    except TransportError as fault:
        count = fault
    if not isinstance(count, int) or count < 1:
        _log.warning("%s: no replica has confirmed the last writes within %d ms", node, _WAIT_MS)
