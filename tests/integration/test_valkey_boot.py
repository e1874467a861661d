"""Servers that are not fit for a store are refused, and the refusal says what to do."""

import asyncio
import logging
from collections.abc import Iterator

import msgspec
import pytest

from flowfabric.app import open_engine
from flowfabric.backend.valkey.backend import Opening, standalone
from flowfabric.backend.valkey.boot import Demands, Facts, Waits, check_servers
from flowfabric.backend.valkey.connection import Login
from flowfabric.backend.valkey.library import INTERFACE, NAME, library
from flowfabric.backend.valkey.node import Node, Standalone
from flowfabric.config import Settings, StoreUrl
from flowfabric.core.ids import PartitionCounts
from flowfabric.core.tokens import Secret
from flowfabric.errors import (
    FlowFabricError,
    InvalidInput,
    PartitionMismatch,
    ScriptNotLoaded,
    Unavailable,
)
from flowfabric.operations.executions import Submission
from tests.resp_server import Answer, bulk, resp_server
from tests.valkey_server import ValkeyServer

PLAIN = Demands()
SECRET = Secret("5e" * 32)


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    started = ValkeyServer()
    yield started
    started.end()


def settings_at(server: ValkeyServer, **options: str) -> Settings:
    store = StoreUrl("valkey", options=options, host="127.0.0.1", port=server.port)
    return Settings(store=store, waitpoint_secret=SECRET)


async def refusal(settings: Settings) -> str:
    with pytest.raises(FlowFabricError) as caught:
        await open_engine(settings)
    return str(caught.value)


async def open_and_close(settings: Settings) -> str:
    """How the store describes its durability."""
    engine = await open_engine(settings)
    durability = engine.deps.store.backend.describe().durability
    await engine.close()
    await engine.deps.store.backend.close()
    return durability


# ---- kind and version


class PassingTime:
    """Time that passes when somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    @property
    def waits(self) -> Waits:
        return Waits(clock=lambda: self.now, sleep=self.sleep)


def told(*infos: str) -> Answer:
    """One `INFO server` after the other, the last one for ever."""
    left = list(infos)

    def answer(words: list[str]) -> bytes:
        match words:
            case ["INFO", "server"]:
                return bulk(left.pop(0) if len(left) > 1 else left[0])
            case ["INFO", "replication"]:
                return bulk("connected_slaves:0\r\n")
            case ["CONFIG", "GET", *_]:
                return b"%2\r\n" + b"".join(
                    map(bulk, ("appendonly", "yes", "appendfsync", "always"))
                )
            case _:
                return b"-ERR unknown command\r\n"

    return answer


async def checked(answer: Answer, time: PassingTime, demands: Demands = PLAIN) -> Facts:
    async with resp_server(answer) as port:
        topology = Standalone(Node("127.0.0.1", port, Login()))
        try:
            return await check_servers(topology, demands, time.waits)
        finally:
            await topology.close()


async def test_an_old_server_is_waited_for_a_minute_and_then_refused() -> None:
    time = PassingTime()
    with pytest.raises(Unavailable, match=r"expected 7\.2 or newer, got 7\.0\.15; upgrade"):
        await checked(told("valkey_version:7.0.15\r\n"), time)
    assert time.pauses[:6] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    assert set(time.pauses[5:]) == {5.0}
    assert 55 < time.now <= 60


async def test_a_server_that_is_upgraded_meanwhile_is_used() -> None:
    time = PassingTime()
    found = await checked(told("valkey_version:7.0.15\r\n", "", "valkey_version:8.1.0\r\n"), time)
    assert found.server_version == "8.1.0"
    assert time.pauses == [0.2, 0.4]


@pytest.mark.parametrize("name", ["valkey", "Valkey"])
async def test_a_server_that_says_it_is_valkey_is_one(name: str) -> None:
    info = f"redis_version:7.2.4\r\nserver_name:{name}\r\n"
    assert (await checked(told(info), PassingTime())).server_version == "7.2.4"


async def test_another_kind_of_server_is_refused_at_once() -> None:
    time = PassingTime()
    with pytest.raises(InvalidInput, match="FF_ALLOW_REDIS=1"):
        await checked(told("redis_version:7.4.0\r\n"), time)
    assert time.pauses == []


async def test_another_kind_of_server_may_be_allowed() -> None:
    found = await checked(told("redis_version:7.4.0\r\n"), PassingTime(), Demands(allow_redis=True))
    assert found.server_version == "7.4.0"


async def test_a_service_that_forbids_undeclared_keys_is_refused() -> None:
    facts = told("valkey_version:9.0.0\r\n")

    def answer(words: list[str]) -> bytes:
        match words:
            case ["FUNCTION", "LIST", *_]:
                return b"*0\r\n"
            case ["FUNCTION", "LOAD", *_]:
                return bulk(NAME)
            case ["FCALL_RO", *_]:
                return b"-ERR Function not found\r\n"
            case ["HGET", *_]:
                return b"$-1\r\n"
            case ["FCALL", *_]:
                return b"-ERR Script tried accessing undeclared key\r\n"
            case _:
                return facts(words)

    async with resp_server(answer) as port:
        backend = standalone(Node("127.0.0.1", port, Login()), Opening())
        with pytest.raises(InvalidInput, match="switch that restriction off"):
            await backend.prepare()
        await backend.close()


# ---- what is kept


async def test_a_server_that_evicts_is_refused(server: ValkeyServer) -> None:
    server.expect("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    assert "maxmemory-policy must be noeviction" in await refusal(settings_at(server))


async def test_a_server_that_forgets_is_refused_unless_that_is_wanted(server: ValkeyServer) -> None:
    server.expect("CONFIG", "SET", "appendonly", "no")
    assert "allow_volatile=true" in await refusal(settings_at(server))
    assert await open_and_close(settings_at(server, allow_volatile="true")) == "memory"


async def test_a_server_that_hides_its_settings_must_be_trusted(server: ValkeyServer) -> None:
    server.expect("ACL", "SETUSER", "default", "-config")
    assert "allow CONFIG GET" in await refusal(settings_at(server))
    assert await open_and_close(settings_at(server, allow_volatile="true")) == "memory"


@pytest.mark.parametrize(("synced", "durability"), [("everysec", "fsync_1s"), ("always", "fsync")])
async def test_durability_is_told(server: ValkeyServer, synced: str, durability: str) -> None:
    server.expect("CONFIG", "SET", "appendfsync", synced)
    assert await open_and_close(settings_at(server)) == durability


async def test_a_server_without_a_replica_is_warned_of(
    server: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        await open_and_close(settings_at(server))
    assert [one for one in caplog.messages if "has no replica" in one]


async def test_a_wait_for_replicas_that_is_in_vain_is_a_warning(
    server: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await open_engine(settings_at(server, durability="replicated"))
    assert engine.deps.store.backend.describe().durability == "replicated"
    with caplog.at_level(logging.WARNING):
        await engine.executions.create(Submission(kind="k"))
    await engine.close()
    await engine.deps.store.backend.close()
    assert [one for one in caplog.messages if "no replica has confirmed" in one]


async def test_an_unknown_durability_is_refused(server: ValkeyServer) -> None:
    assert "expected replicated" in await refusal(settings_at(server, durability="most"))


# ---- what was agreed on


async def test_other_partition_counts_are_refused(server: ValkeyServer) -> None:
    settings = settings_at(server)
    await open_and_close(settings)
    other = msgspec.structs.replace(settings, counts=PartitionCounts(flow=16))
    with pytest.raises(PartitionMismatch, match="num_flow_partitions: stored=256, config=16"):
        await open_engine(other)


async def test_a_shared_store_needs_a_chosen_secret(server: ValkeyServer) -> None:
    settings = msgspec.structs.replace(settings_at(server), waitpoint_secret=Secret(""))
    assert "FF_WAITPOINT_HMAC_SECRET" in await refusal(settings)


# ---- the library


def load(server: ValkeyServer, *functions: tuple[str, str]) -> None:
    """A library of ours from another release: names of functions and what each answers."""
    bodies = [
        f"server.register_function{{function_name='{name}', callback=function() return '{answer}' "
        "end, flags={'no-writes'}}"
        for name, answer in functions
    ]
    text = "\n".join([f"#!lua name={NAME}", *bodies])
    assert server.run("FUNCTION", "LOAD", "REPLACE", text).startswith(b"$")


def version_at(server: ValkeyServer) -> bytes:
    return server.run("FCALL_RO", f"ff{INTERFACE}_version", "0").split(b"\r\n")[1]


async def test_an_older_library_is_replaced(server: ValkeyServer) -> None:
    load(server, (f"ff{INTERFACE}_version", "0.0.0 0123456789abcdef"))
    await open_and_close(settings_at(server))
    assert not version_at(server).startswith(b"0.0.0 ")


async def test_a_newer_library_that_offers_our_number_is_left_alone(server: ValkeyServer) -> None:
    await open_and_close(settings_at(server))
    own = version_at(server)
    text = library(test_mode=False)[0].replace(own.decode(), "999.0.0 0123456789abcdef")
    assert server.run("FUNCTION", "LOAD", "REPLACE", text).startswith(b"$")
    await open_and_close(settings_at(server))
    assert version_at(server).startswith(b"999.0.0 ")


def loading_nothing(server: ValkeyServer) -> Settings:
    return msgspec.structs.replace(settings_at(server), skip_library_load=True)


async def test_a_process_that_may_not_load_uses_what_others_have_loaded(
    server: ValkeyServer,
) -> None:
    await open_and_close(settings_at(server))
    server.expect("ACL", "SETUSER", "default", "-function")
    await open_and_close(loading_nothing(server))


async def test_a_process_that_may_not_load_is_refused_without_a_library(
    server: ValkeyServer,
) -> None:
    told = await refusal(loading_nothing(server))
    assert "it has no library of ours" in told
    assert "`flowfabric migrate`" in told
    assert b"flowfabric" not in server.run("FUNCTION", "LIST")


async def test_a_process_that_may_not_load_is_refused_by_an_older_library(
    server: ValkeyServer,
) -> None:
    load(server, (f"ff{INTERFACE}_version", "0.0.0 0123456789abcdef"))
    assert "its library is 0.0.0 0123456789abcdef" in await refusal(loading_nothing(server))
    assert version_at(server).startswith(b"0.0.0 ")


async def test_a_process_that_may_not_load_says_so_when_functions_vanish(
    server: ValkeyServer,
) -> None:
    await open_and_close(settings_at(server))
    engine = await open_engine(loading_nothing(server))
    server.expect("FUNCTION", "FLUSH", "SYNC")
    with pytest.raises(ScriptNotLoaded):
        await engine.executions.create(Submission(kind="k"))
    assert b"flowfabric" not in server.run("FUNCTION", "LIST")
    await open_and_close(settings_at(server))
    await engine.executions.create(Submission(kind="k"))
    await engine.close()
    await engine.deps.store.backend.close()


async def test_one_cannot_force_and_skip_loading(server: ValkeyServer) -> None:
    both = msgspec.structs.replace(loading_nothing(server), force_lua_reload=True)
    assert "contradicts force_lua_reload" in await refusal(both)


async def test_a_library_without_our_number_is_not_touched(server: ValkeyServer) -> None:
    load(server, (f"ff{INTERFACE + 1}_version", "999.0.0 0123456789abcdef"))
    assert "upgrade this process" in await refusal(settings_at(server))
    assert server.run("FCALL_RO", f"ff{INTERFACE + 1}_version", "0").startswith(b"$")


async def test_an_address_that_does_not_answer_is_told_soon(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Somebody listens, but it is no Valkey: nothing ever comes back."""
    gone = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gone.wait()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    topology = Standalone(Node("127.0.0.1", port, Login()))
    try:
        with pytest.raises(FlowFabricError):
            await check_servers(topology, PLAIN, Waits(budget_s=0.3, silence_s=0.05))
    finally:
        gone.set()
        await topology.close()
        server.close()
        await server.wait_closed()
    (told,) = [one.getMessage() for one in caplog.records if "Check the address" in one.message]
    assert f"127.0.0.1:{port}" in told
    assert Waits().silence_s == 2.0
