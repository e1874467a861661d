"""The server or store of a command, and the exit codes of its errors."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeVar

import msgspec
import typer

from flowfabric.config import (
    SERVER_SCHEMES,
    Settings,
    parse_store_url,
    settings_for,
    settings_from,
)
from flowfabric.core.tokens import Secret
from flowfabric.errors import ConfigError, FlowFabricError, HttpError, Unreachable, UnsupportedStore
from flowfabric.errors.plain import plain
from flowfabric.fabric.admin import Admin
from flowfabric.fabric.runs import Run
from flowfabric.fabric.submitter import Submitter

if TYPE_CHECKING:
    from flowfabric.fabric.app import FlowFabric

T = TypeVar("T")

BOOT_TIMEOUT_S: Final = 2.0
DEFAULT_URL: Final = "http://127.0.0.1:9090"

Url = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="FF_URL",
        help="A server (http://…), or a store to open here (sqlite:///file, postgresql://…).",
    ),
]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Whose work.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def ask(url: str, question: Callable[[Admin], Awaitable[T]]) -> T:
    """Open, ask, close; whatever goes wrong is one line and exit code 1."""
    return run_command(_ask(url, question), url)


async def _ask(url: str, question: Callable[[Admin], Awaitable[T]]) -> T:
    async with connected(url) as place:
        return await question(place.admin)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator["Server | FlowFabric"]:
    """The token comes from FF_API_TOKEN, never from an argument: those can be seen by others.
    Only the code that the address needs is loaded."""
    settings = settings_for(url, own_settings())
    if settings.store.scheme in SERVER_SCHEMES:
        async with _server_at(settings.store.path, settings.api_token) as server:
            yield server
        return
    from flowfabric.fabric.app import FlowFabric

    async with FlowFabric(duties=False, settings=settings) as fabric:
        yield fabric


@asynccontextmanager
async def _server_at(url: str, token: Secret) -> AsyncIterator["Server"]:
    try:
        from flowfabric.client.operations import http_transport
        from flowfabric.client.rest import Rest
        from flowfabric.client.waiting import HttpWaiter
    except ModuleNotFoundError as fault:
        raise ConfigError(
            f"url: a server is reached with the package {fault.name}: install flowfabric[http]"
        ) from None
    rest = Rest(url, token)
    try:
        yield Server(Submitter(http_transport(rest), HttpWaiter(rest)))
    finally:
        await rest.close()


class Server:
    """A server, as far as commands need one: nothing of an engine is loaded for it."""

    def __init__(self, submitter: Submitter) -> None:
        self._submitter = submitter
        self.admin = Admin(submitter.transport, self._port)

    async def _port(self) -> Submitter:
        return self._submitter

    def run(self, execution_id: str) -> Run[Any]:
        return Run(execution_id, self._port)


def own_settings() -> Settings:
    """A person waits, so a store that cannot be reached is given up soon."""
    return msgspec.structs.replace(settings_from(), boot_timeout_s=BOOT_TIMEOUT_S)


def display_url(url: str) -> str:
    """An address for people, without its password."""
    try:
        return parse_store_url(url).where
    except FlowFabricError:
        return url.partition(":")[0]


def run_command(work: Awaitable[T], url: str = "") -> T:
    """Run to the end. Ctrl-C leaves quietly."""
    try:
        return asyncio.run(_awaited(work))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except FlowFabricError as fault:
        fail(_message(fault, url), code=code_of(fault))


async def _awaited(work: Awaitable[T]) -> T:
    return await work


def _message(fault: FlowFabricError, url: str) -> str:
    if isinstance(fault, HttpError) and url == DEFAULT_URL:
        return (
            f"no server answers at {url}; start one with `flowfabric dev`, or name a store:"
            " --url sqlite:///flowfabric.db"
        )
    if isinstance(fault, Unreachable):
        return f"no server answers at {display_url(url)}: {fault.detail}"
    if isinstance(fault, ConfigError):
        return fault.detail
    problems = fault.details.get("problems")
    return "; ".join(map(str, problems)) if isinstance(problems, tuple) else str(fault)


def code_of(fault: FlowFabricError) -> int:
    """A store this installation cannot open is a wrong use of it, not a failure."""
    return 2 if isinstance(fault, UnsupportedStore) else 1


def fail(*lines: str, code: int = 1) -> NoReturn:
    sys.stderr.writelines(f"error: {plain(line)}\n" for line in lines)
    raise typer.Exit(code)
