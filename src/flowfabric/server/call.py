"""What a handler works with: one call, and the services that all calls share."""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import msgspec

from flowfabric.config import Settings
from flowfabric.engine import Engine
from flowfabric.engine.permits import Permits
from flowfabric.operations.types import Owned
from flowfabric.server.access import Caller, Tokens
from flowfabric.server.decoding import Receive
from flowfabric.server.route import Route
from flowfabric.server.waits import (
    MAX_LONG_POLLS,
    MAX_WATCHES,
    CancellableWait,
    ClaimWaits,
    Drain,
)
from flowfabric.telemetry.observer import NO_OBSERVER, Observer
from flowfabric.telemetry.traces import Traces

B = TypeVar("B")
Q = TypeVar("Q")
Exposition = Callable[[], Awaitable[bytes | None]]


async def _no_metrics() -> bytes | None:
    return None


class Services:
    """The engine, the tokens of its callers, and the pools that limit concurrent work.

    `exposition` renders the metrics, `openapi` the OpenAPI document; both run when a request asks.
    """

    def __init__(
        self, engine: Engine, settings: Settings, observer: Observer = NO_OBSERVER
    ) -> None:
        self.engine = engine
        self.settings = settings
        self.tokens = Tokens(settings.tokens, engine.api_tokens)
        self.drain = Drain()
        self.sse = Permits("sse_streams", settings.max_sse_streams)
        self.long_polls = Permits("long_polls", MAX_LONG_POLLS)
        self.claim_waits = ClaimWaits(on_refusal=observer.at_capacity)
        self.watches = Permits("watches", MAX_WATCHES)
        self.observer = observer
        self.traces = Traces(backend=engine.deps.store.backend.describe().family)
        pools = (
            self.sse,
            self.long_polls,
            self.watches,
            engine.keys.rotations,
            engine.streams.permits,
        )
        for pool in pools:
            pool.on_refusal = observer.rejected
        # Names of the background duties.
        self.duties: tuple[str, ...] = ()
        self.exposition: Exposition = _no_metrics
        self.openapi: Callable[[], bytes] = bytes


class Call(msgspec.Struct, Generic[B, Q], frozen=True):
    """One request, as its handler sees it; body and query have the types the route declares."""

    services: Services
    engine: Engine
    route: Route
    caller: Caller
    receive: Receive
    headers: dict[bytes, bytes]
    # The trace it belongs to; "" for none.
    traceparent: str
    path: dict[str, Any]
    query: Q
    body: B

    @property
    def execution_id(self) -> str:
        return str(self.path["execution_id"])

    @property
    def share(self) -> str:
        """By which name the caller has its share of the pools."""
        return self.services.tokens.share_of(self.caller)

    def cancellable_wait(self) -> CancellableWait:
        """For a handler that waits: ends when the client disconnects or the server drains."""
        return CancellableWait(self.services.drain, self.receive, self.route.name)

    async def authorize_execution(self) -> None:
        """Refuse a caller who may not see the namespace of the execution in the path."""
        owned = [(Owned("execution"), self.execution_id)]
        await self.engine.owners.check(owned, self.caller.namespaces)
