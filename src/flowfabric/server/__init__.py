"""The HTTP server: every operation of the engine over REST, and the duties of the store."""

from flowfabric.server.boot import booted, dev
from flowfabric.server.http import Http
from flowfabric.server.run import serve

__all__ = ["Http", "booted", "dev", "serve"]
