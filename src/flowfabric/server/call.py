"""What a handler works with: one call, and the services that all calls share."""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from flowfabric.config import Settings
from flowfabric.engine import Engine
from flowfabric.engine.permits import Permits
from flowfabric.errors import InvalidInput
from flowfabric.operations.types import Owned
from flowfabric.server.auth import Caller, Tokens
from flowfabric.server.decoding import Receive
from flowfabric.server.route import Route
from flowfabric.server.waits import CancellableWait, ClaimWaits, Drain
from flowfabric.telemetry.observer import NO_OBSERVER, Observer
from flowfabric.telemetry.traces import Traces, given_parent

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
        self.tokens = Tokens(settings.tokens)
        self.drain = Drain()
        self.sse = Permits("sse_streams", settings.max_sse_streams)
        self.claim_waits = ClaimWaits(on_refusal=observer.at_capacity)
        self.observer = observer
        self.traces = Traces()
        for pool in (self.sse, engine.keys.rotations, engine.streams.permits):
            pool.on_refusal = observer.rejected
        # Names of the background duties.
        self.duties: tuple[str, ...] = ()
        self.exposition: Exposition = _no_metrics
        self.openapi: Callable[[], bytes] = bytes


class Call(Generic[B, Q]):
    """One request, as its handler sees it; body and query have the types the route declares."""

    __slots__ = (
        "body",
        "caller",
        "engine",
        "headers",
        "path",
        "query",
        "receive",
        "route",
        "services",
    )

    body: B
    query: Q

    def __init__(self, services: Services, route: Route, caller: Caller, receive: Receive) -> None:
        self.services = services
        self.engine: Engine = services.engine
        self.route = route
        self.caller = caller
        self.receive = receive
        self.headers: dict[bytes, bytes] = {}
        self.path: dict[str, Any] = {}

    @property
    def execution_id(self) -> str:
        return str(self.path["execution_id"])

    def require_same_id(self, name: str, given: Any) -> None:
        """An id that the body repeats must be the one of the path."""
        if given is not None and given != self.path[name]:
            raise InvalidInput(f"path {name} does not match body {name}")

    @property
    def traceparent(self) -> str:
        """The traceparent of this call; "" for none."""
        header = self.headers.get(b"traceparent")
        sent = given_parent(header.decode("latin-1")) if header else ""
        return self.services.traces.current(sent)

    def cancellable_wait(self) -> CancellableWait:
        """For a handler that waits: ends when the client disconnects or the server drains."""
        return CancellableWait(self.services.drain, self.receive, self.route.name)

    async def authorize_execution(self) -> None:
        """Refuse a caller who may not see the namespace of the execution in the path."""
        owned = [(Owned("execution"), self.execution_id)]
        await self.engine.owners.check(owned, self.caller.namespaces)
