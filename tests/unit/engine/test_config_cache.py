"""What is cached of the configuration, and for how long."""

import asyncio

import pytest

from flowfabric.app import backend_of
from flowfabric.backend.base import CONFIG_TOPIC
from flowfabric.config import Settings, StoreUrl
from flowfabric.engine import config_cache
from flowfabric.engine.config_cache import ConfigCache


class Documents:
    """A store of one value, which may not answer."""

    def __init__(self) -> None:
        self.value = 1
        self.answers = asyncio.Event()
        self.answers.set()

    async def read(self, _: str) -> int:
        found = self.value
        await self.answers.wait()
        return found


@pytest.fixture
def documents() -> Documents:
    return Documents()


async def test_a_change_is_read_at_once(documents: Documents) -> None:
    backend = backend_of(Settings(store=StoreUrl("memory")))
    cache = ConfigCache[str, int](backend, "reading a value", documents.read)
    assert await cache.fresh("a") == 1
    documents.value = 2
    assert cache.known("a") == 1
    backend.notifier().notify(CONFIG_TOPIC)
    assert cache.known("a") is None
    assert await cache.fresh("a") == 2
    assert cache.known("a") == 2
    await cache.close()


async def test_the_last_value_serves_while_a_change_cannot_be_read(
    documents: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_cache, "_SOON_S", 0.01)
    backend = backend_of(Settings(store=StoreUrl("memory")))
    cache = ConfigCache[str, int](backend, "reading a value", documents.read)
    assert await cache.fresh("a") == 1
    backend.notifier().notify(CONFIG_TOPIC)
    documents.answers.clear()
    assert await cache.fresh("a") == 1
    documents.answers.set()
    await cache.close()


async def test_what_changes_while_it_is_read_is_read_again(documents: Documents) -> None:
    backend = backend_of(Settings(store=StoreUrl("memory")))
    cache = ConfigCache[str, int](backend, "reading a value", documents.read)
    documents.answers.clear()
    reading = asyncio.ensure_future(cache.fresh("a"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    documents.value = 2
    backend.notifier().notify(CONFIG_TOPIC)
    assert cache.known("a") is None
    documents.answers.set()
    assert await reading == 1
    assert await cache.fresh("a") == 2
    await cache.close()
