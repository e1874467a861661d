"""How a Valkey server is entered: passwords, users with few rights, and TLS."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from flowfabric.app import open_engine
from flowfabric.config import Settings, StoreUrl
from flowfabric.core.tokens import Secret
from flowfabric.errors import AuthFault, FlowFabricError, ProtocolFault
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import ClaimOrder
from tests.tls_doors import make_certificates, tls_door
from tests.valkey_server import ValkeyCluster, ValkeyServer, await_server

PASSWORD = "correct horse battery staple"
OURS = ("~ff:*", "&ff:*", "+@all", "-@dangerous", "+info", "+config|get", "+function", "+wait")


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    started = ValkeyServer()
    yield started
    started.end()


def settings_at(port: int, user: str = "", password: str = "", **options: str) -> Settings:
    store = StoreUrl(
        "valkey",
        options=options,
        host="127.0.0.1",
        port=port,
        user=user,
        password=Secret(password),
    )
    return Settings(store=store, waitpoint_secret=Secret("5e" * 32))


async def submit_once(settings: Settings) -> None:
    engine = await open_engine(settings)
    try:
        await engine.executions.create(Submission(kind="k"))
    finally:
        await engine.close()
        await engine.deps.store.backend.close()


async def refusal(settings: Settings) -> FlowFabricError:
    with pytest.raises(FlowFabricError) as caught:
        await submit_once(settings)
    return caught.value


async def test_a_user_needs_only_our_keys_channels_and_commands(server: ValkeyServer) -> None:
    server.expect("ACL", "SETUSER", "flow", "on", f">{PASSWORD}", *OURS)
    await submit_once(settings_at(server.port, "flow", PASSWORD))


@pytest.mark.parametrize(("user", "password"), [("flow", "guess"), ("nobody", PASSWORD)])
async def test_wrong_credentials_are_refused_at_once_and_told_to_nobody(
    server: ValkeyServer, user: str, password: str
) -> None:
    server.expect("ACL", "SETUSER", "flow", "on", f">{PASSWORD}", *OURS)
    fault = await refusal(settings_at(server.port, user, password))
    assert isinstance(fault, AuthFault)
    assert not fault.retryable
    assert password not in str(fault)
    assert PASSWORD not in repr(settings_at(server.port, user, PASSWORD))


async def test_a_missing_password_is_refused(server: ValkeyServer) -> None:
    server.expect("CONFIG", "SET", "requirepass", PASSWORD)
    assert isinstance(await refusal(settings_at(server.port)), AuthFault)


async def test_a_user_without_functions_is_refused(server: ValkeyServer) -> None:
    server.expect("ACL", "SETUSER", "flow", "on", f">{PASSWORD}", *OURS, "-fcall", "-fcall_ro")
    assert isinstance(await refusal(settings_at(server.port, "flow", PASSWORD)), AuthFault)


# ---- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tls")
    make_certificates(directory)
    return directory


@pytest.fixture
async def tls_port(server: ValkeyServer, certificates: Path) -> AsyncIterator[int]:
    async with tls_door(server.port, certificates) as port:
        yield port


async def test_a_server_is_spoken_to_through_tls(tls_port: int, certificates: Path) -> None:
    authority = str(certificates / "ca.pem")
    await submit_once(settings_at(tls_port, tls="true", tls_ca=authority))


async def test_a_server_nobody_vouches_for_is_not_spoken_to(tls_port: int) -> None:
    fault = await refusal(settings_at(tls_port, tls="true"))
    assert isinstance(fault, ProtocolFault)
    assert "name its authority by tls_ca" in str(fault)


async def test_an_authority_that_is_not_there_is_told(tls_port: int, tmp_path: Path) -> None:
    fault = await refusal(settings_at(tls_port, tls="true", tls_ca=str(tmp_path / "no.pem")))
    assert isinstance(fault, ProtocolFault)
    assert "no.pem" in str(fault)


async def test_a_cluster_is_spoken_to_through_tls_wherever_it_sends_us(
    certificates: Path,
) -> None:
    cluster = ValkeyCluster()
    try:
        async with AsyncExitStack() as doors:
            ports = [
                await doors.enter_async_context(tls_door(server.port, certificates))
                for server in cluster.primaries
            ]
            await asyncio.to_thread(announce, cluster, ports)
            options = {"cluster": "true", "tls": "true", "tls_ca": str(certificates / "ca.pem")}
            engine = await open_engine(settings_at(ports[0], **options))
            made = {
                (
                    await engine.executions.create(
                        Submission(kind="work", idempotency_key=str(number))
                    )
                ).execution_id
                for number in range(20)
            }
            order = ClaimOrder(worker_id="w", worker_instance_id="w1", lanes=("default",), n=20)
            assert {one.execution_id for one in await engine.claims.claim(order)} == made
            await engine.close()
            await engine.deps.store.backend.close()
    finally:
        cluster.end()


def announce(cluster: ValkeyCluster, ports: list[int]) -> None:
    """Have the cluster name its doors instead of its servers."""
    for server, port in zip(cluster.primaries, ports, strict=True):
        server.expect("CONFIG", "SET", "cluster-announce-port", str(port))
    named = [f":{port}\r\n".encode() for port in ports]
    for server in cluster.primaries:
        await_server(lambda one: all(port in one.run("CLUSTER", "SLOTS") for port in named), server)


class _Notifications(logging.Handler):
    """What is logged about notifications, and that something was."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[logging.LogRecord] = []
        self.has_told = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "notifications" in record.getMessage() or record.levelno >= logging.ERROR:
            self.told.append(record)
            self.has_told.set()


async def test_a_user_who_may_not_subscribe_polls(server: ValkeyServer) -> None:
    server.expect("ACL", "SETUSER", "flow", "on", f">{PASSWORD}", *OURS, "-subscribe")
    settings = settings_at(server.port, "flow", PASSWORD)
    log, notifications = logging.getLogger("flowfabric"), _Notifications()
    log.addHandler(notifications)
    engine = await open_engine(msgspec.structs.replace(settings, claim_poll_interval_ms=100))
    try:
        order = ClaimOrder(
            worker_id="w", worker_instance_id="w-1", lanes=("default",), wait_ms=20_000
        )
        waiting = asyncio.ensure_future(engine.claims.claim(order))
        await notifications.has_told.wait()
        assert engine.deps.store.backend.notifier().is_disconnected
        # Submitted elsewhere: nobody here is notified of it.
        await submit_once(settings_at(server.port))
        assert len(await asyncio.wait_for(waiting, 4)) == 1
        stats = server.run("INFO", "stats").decode()
        connections = int(stats.split("total_connections_received:")[1].split()[0])
        assert connections < 30
    finally:
        log.removeHandler(notifications)
        await engine.close()
        await engine.deps.store.backend.close()
    (told,) = notifications.told
    assert told.levelno == logging.WARNING
    assert "NOPERM" in told.getMessage()


async def test_a_user_of_a_cluster_who_may_subscribe_later_is_notified_from_then_on() -> None:
    cluster = ValkeyCluster()
    log, notifications = logging.getLogger("flowfabric"), _Notifications()
    log.addHandler(notifications)
    try:
        rights = ("flow", "on", f">{PASSWORD}", *OURS)
        for server in cluster.primaries:
            server.expect("ACL", "SETUSER", *rights, "-ssubscribe")
        port = cluster.primaries[0].port
        engine = await open_engine(settings_at(port, "flow", PASSWORD, cluster="true"))
        notifier = engine.deps.store.backend.notifier()
        subscription = notifier.subscribe("config")
        await notifications.has_told.wait()
        assert notifier.is_disconnected
        for server in cluster.primaries:
            server.expect("ACL", "SETUSER", *rights)
        while notifier.is_disconnected:
            assert await subscription.wait(20)
        await engine.close()
        await engine.deps.store.backend.close()
    finally:
        log.removeHandler(notifications)
        cluster.end()
    assert 1 <= len(notifications.told) <= len(cluster.primaries)
    assert all("NOPERM" in told.getMessage() for told in notifications.told)
