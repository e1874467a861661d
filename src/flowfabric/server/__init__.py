"""The HTTP server: every operation of the engine over REST, and the duties of the store."""

from flowfabric.server.boot import booted
from flowfabric.server.http import Http
from flowfabric.server.run import serve
from flowfabric.server.settings import dev

__all__ = ["Http", "booted", "dev", "serve"]
