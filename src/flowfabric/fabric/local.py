"""The REST surface of an engine in this process: the server's own application, and no socket."""

import secrets

import httpx
import msgspec

from flowfabric.client.rest import Rest
from flowfabric.config import ApiToken, Settings, token_digest
from flowfabric.core.tokens import Secret
from flowfabric.engine import Engine
from flowfabric.server.http import Http
from flowfabric.server.routes import ROUTES
from flowfabric.server.services import Services


def rest_over(engine: Engine, settings: Settings) -> Rest:
    """Whoever has the engine may do everything with it, and shows a token nobody else knows."""
    token = Secret(secrets.token_urlsafe(32))
    own = ApiToken(name="this process", digest=token_digest(token.reveal()))
    services = Services(engine, msgspec.structs.replace(settings, tokens=(own,)))
    return Rest("http://localhost", token, httpx.ASGITransport(Http(services, ROUTES)))
