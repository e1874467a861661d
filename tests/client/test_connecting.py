"""From an address and a token to a connection, and what is wrong with either."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import msgspec
import pytest

from flowfabric import ConfigError, FlowFabric
from flowfabric.config import Address, Settings, StoreUrl, parse_store_url, settings_from
from flowfabric.core.plan import Family
from flowfabric.errors import InvalidInput, Unauthorized, Unreachable
from flowfabric.operations.events import CompletionEvent, EventScope
from tests.client.scripted import saying
from tests.serving import TOKEN, Server, serving, tokened

COMPLETIONS = frozenset[Family]({"completion"})


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as started:
        yield started


async def test_the_environment_may_name_the_server(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FF_URL", server.url)
    monkeypatch.setenv("FF_API_TOKEN", TOKEN)
    async with FlowFabric() as fabric:
        assert (await fabric.admin.describe()).family == "memory"


async def test_an_address_goes_with_the_token_of_the_settings(server: Server) -> None:
    settings = settings_from({"FF_API_TOKEN": TOKEN})
    assert TOKEN not in repr(settings)
    async with FlowFabric(server.url, settings=settings) as fabric:
        assert (await fabric.open()).engine is None


async def test_a_wrong_token_is_known_at_once(server: Server) -> None:
    with pytest.raises(Unauthorized):
        await FlowFabric(server.url, token="wrong", settings=Settings()).open()
    with pytest.raises(Unauthorized):
        await FlowFabric(server.url, settings=Settings()).open()


async def test_a_server_that_is_not_there_is_known_at_once() -> None:
    async with saying(b"") as nobody:
        url = nobody.url
    with pytest.raises(Unreachable):
        await FlowFabric(url, settings=Settings()).open()


@pytest.mark.parametrize("token", ["", " ", "a b", "a\n", "ä"])
def test_a_token_fits_into_a_header(token: str) -> None:
    with pytest.raises(ConfigError, match="token") as caught:
        FlowFabric("http://localhost:1", token=token)
    assert token.strip() == "" or token not in str(caught.value)


async def test_a_store_takes_no_token() -> None:
    with pytest.raises(ConfigError, match="token"):
        await FlowFabric("memory://", token="abc", settings=Settings()).open()


def test_credentials_do_not_belong_into_an_address() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_store_url("https://me:hunter2@host")
    assert "hunter2" not in str(caught.value)


async def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("flowfabric.client.")]:
        if name != "flowfabric.client.addresses":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "httptools", None)
    with pytest.raises(ConfigError, match=r"flowfabric\[http\]"):
        await FlowFabric("http://localhost:1", settings=Settings()).open()


async def test_a_server_that_restarts_is_no_end(tmp_path: Path) -> None:
    """Neither for whoever waits for a result or for events, nor for a worker."""
    settings = msgspec.structs.replace(
        tokened(), store=StoreUrl("sqlite", str(tmp_path / "restart.db"))
    )
    first = Server(settings)
    await first.start()
    port = int(first.url.rpartition(":")[2])
    second = Server(msgspec.structs.replace(settings, listen=Address("127.0.0.1", port)))
    fabric = FlowFabric(first.url, token=TOKEN, settings=Settings())

    @fabric.task()
    async def add(a: int) -> int:
        return a + 1

    async with AsyncExitStack() as stack:
        stack.push_async_callback(second.stop)
        await stack.enter_async_context(fabric)
        await stack.enter_async_context(fabric.worker())
        events = await (await fabric.submitter()).events(COMPLETIONS, EventScope(), "")
        async with aclosing(events):
            following = asyncio.ensure_future(anext(events))
            later = await add.options(delay="2s").submit(1)
            waiting = asyncio.ensure_future(later.result("40s"))
            await first.stop()
            await second.start()
            assert await waiting == 2
            event = await asyncio.wait_for(following, 30)
            assert isinstance(event, CompletionEvent)
            assert event.execution_id == later.id
            assert await add.call(2) == 3
