"""How a Valkey server is entered: passwords, users with few rights, and TLS."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from flowfabric.app import open_engine
from flowfabric.config import Settings, StoreUrl
from flowfabric.core.tokens import Secret
from flowfabric.engine.executions import Submission
from flowfabric.errors import AuthFault, FlowFabricError, ProtocolFault
from tests.valkey_server import ValkeyServer

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


def openssl(directory: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority of our own, and what it says of this host."""
    directory = tmp_path_factory.mktemp("tls")
    (directory / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    key = ("-newkey", "rsa:2048", "-nodes")
    authority = ("-subj", "/CN=test authority", "-keyout", "ca.key", "-out", "ca.pem")
    openssl(directory, "req", "-x509", *key, *authority, "-days", "2")
    openssl(directory, "req", *key, "-subj", "/CN=test", "-keyout", "tls.key", "-out", "tls.csr")
    signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
    openssl(directory, "x509", "-req", "-in", "tls.csr", *signing, "-out", "tls.pem", "-days", "2")
    return directory


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)


@pytest.fixture
async def tls_port(server: ValkeyServer, certificates: Path) -> AsyncIterator[int]:
    """A door with TLS in front of the server, which is built without it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates / "tls.pem", certificates / "tls.key")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", server.port)
        back = asyncio.ensure_future(_pour(inner_reader, writer))
        try:
            await _pour(reader, inner_writer)
        except OSError:
            pass
        finally:
            inner_writer.close()
            await asyncio.gather(back, return_exceptions=True)
            writer.close()

    door = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with door:
        yield door.sockets[0].getsockname()[1]


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
