"""What the handlers of one server share."""

from collections.abc import Awaitable, Callable
from functools import cached_property

from flowfabric.config import Settings
from flowfabric.engine import Engine
from flowfabric.engine.permits import Permits
from flowfabric.server.auth import Tokens
from flowfabric.server.replies import encode
from flowfabric.server.waiting import ClaimWaits, Drain
from flowfabric.telemetry.observer import NO_OBSERVER, Observer
from flowfabric.telemetry.traces import Traces

Exposition = Callable[[], Awaitable[bytes | None]]


async def _no_metrics() -> bytes | None:
    return None


class Services:
    """The engine, who may use it, and the pools of what may go on at once.

    `exposition` renders the metrics, `describe` the OpenAPI document; both are asked when somebody
    wants to see them.
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
        self.describe: Callable[[], object] = dict

    def document(self) -> bytes:
        return self._document

    @cached_property
    def _document(self) -> bytes:
        return encode(self.describe())
