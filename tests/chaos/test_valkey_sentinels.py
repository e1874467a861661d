"""The primary that sentinels name changes under load."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from flowfabric.backend.base import lane_topic
from flowfabric.backend.valkey.keys import CHANNEL
from flowfabric.config import Settings, StoreUrl
from flowfabric.core.tokens import Secret
from flowfabric.errors import AuthFault, InvalidInput, ProtocolFault, TransportFault
from flowfabric.operations.workers import ClaimOrder
from tests.chaos.load import ended_well, engine_at
from tests.chaos.valkey_load import Load
from tests.valkey_sentinel import NAME, WatchedPair
from tests.valkey_server import ValkeyServer, await_server

SOON_S = 20.0


@pytest.fixture
def pair() -> Iterator[WatchedPair]:
    started = WatchedPair()
    yield started
    started.end()


def settings_for(*ports: int, name: str = NAME, **options: str) -> Settings:
    places = tuple(("127.0.0.1", port) for port in ports)
    store = StoreUrl("valkey", name, options, password=Secret("open"), sentinels=places)
    return Settings(store=store, waitpoint_secret=Secret("5e" * 32), boot_timeout_s=0.0)


@pytest.mark.parametrize(
    "befall",
    [lambda _: None, ValkeyServer.kill, ValkeyServer.freeze],
    ids=["well", "killed", "frozen"],
)
async def test_work_goes_on_at_the_new_primary(
    pair: WatchedPair, befall: Callable[[ValkeyServer], None]
) -> None:
    async with engine_at(settings_for(pair.sentinel.port)) as engine:
        load = Load(engine)
        load.start()
        await load.more(100)
        acknowledged = list(load.submitted)
        assert (await asyncio.to_thread(pair.primary.run, "WAIT", "1", "5000")).startswith(b":1")
        befall(pair.primary)
        await asyncio.to_thread(pair.fail_over)
        await load.more(200)
        await ended_well(load, acknowledged)


def has_listener(server: ValkeyServer) -> bool:
    return b":1" in server.run("PUBSUB", "NUMSUB", f"{CHANNEL}{lane_topic('default', 'default')}")


async def test_who_waits_is_rung_by_the_new_primary(pair: WatchedPair) -> None:
    order = ClaimOrder(worker_id="w", worker_instance_id="w1", lanes=("default",), wait_ms=30_000)
    async with engine_at(settings_for(pair.sentinel.port)) as engine:
        load = Load(engine)
        waiting = asyncio.ensure_future(engine.claims.claim(order))
        await asyncio.to_thread(await_server, has_listener, pair.primary)
        pair.primary.freeze()
        await asyncio.to_thread(pair.fail_over)
        own = await load.submit()
        async with asyncio.timeout(SOON_S):
            (claimed,) = await waiting
        assert claimed.execution_id == own


async def test_sentinels_that_are_away_keep_nobody_waiting(pair: WatchedPair) -> None:
    gone = ValkeyServer()
    gone.end()
    frozen = ValkeyServer()
    frozen.freeze()
    places = (gone.port, frozen.port, pair.sentinel.port)
    async with engine_at(settings_for(*places)) as engine:
        assert await Load(engine).submit()
    frozen.end()


async def test_without_a_sentinel_the_primary_is_not_found() -> None:
    gone = ValkeyServer()
    gone.end()
    with pytest.raises(TransportFault, match=f"no sentinel tells where '{NAME}' is.*{gone.port}"):
        async with engine_at(settings_for(gone.port)):
            pass


async def test_a_name_no_sentinel_knows_is_refused(pair: WatchedPair) -> None:
    with pytest.raises(ProtocolFault, match="no sentinel knows a primary called 'other'"):
        async with engine_at(settings_for(pair.sentinel.port, name="other")):
            pass


async def test_sentinels_of_a_cluster_are_refused() -> None:
    with pytest.raises(InvalidInput, match="sentinels monitor a single server"):
        async with engine_at(settings_for(26379, cluster="true")):
            pass


async def test_sentinels_that_want_a_password_get_it_if_they_are_to(pair: WatchedPair) -> None:
    """A server that wants none takes any."""
    pair.sentinel.expect("ACL", "SETUSER", "default", "resetpass", ">open")
    with pytest.raises(AuthFault):
        async with engine_at(settings_for(pair.sentinel.port)):
            pass
    async with engine_at(settings_for(pair.sentinel.port, sentinel_auth="true")) as engine:
        assert await Load(engine).submit()
