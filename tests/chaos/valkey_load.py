"""The load of a Valkey store: its callers wait for their servers."""

from flowfabric.config import Settings, StoreUrl
from flowfabric.core.tokens import Secret
from flowfabric.engine import Engine
from tests.chaos import load
from tests.chaos.load import RETRY_S
from tests.valkey_server import ValkeyServer


def settings_for(server: ValkeyServer, *, cluster: bool = False, **more: str) -> Settings:
    options = {"cluster": "true", **more} if cluster else more
    store = StoreUrl("valkey", options=options, host="127.0.0.1", port=server.port)
    return Settings(store=store, waitpoint_secret=Secret("5e" * 32))


def be_patient(engine: Engine, seconds: float = RETRY_S) -> None:
    """Let callers wait for their servers, however slow this machine is."""
    engine.deps.store.backend._functions.retry_s = seconds  # type: ignore[attr-defined]


class Load(load.Load):
    def __init__(self, engine: Engine) -> None:
        be_patient(engine)
        super().__init__(engine)
