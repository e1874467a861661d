"""A real server on a loopback port, in a thread with a loop of its own."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from flowfabric.config import ApiToken, Settings, token_digest
from flowfabric.server import booted
from flowfabric.server.boot import bound_socket, dev
from flowfabric.server.listener import Listener

TOKEN = "test-token-0123456789"


class Server:
    """Whatever goes wrong in its thread is raised by `start` or `stop`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.found: list[object] = []
        self.url = ""

    async def start(self) -> None:
        self._thread.start()
        await asyncio.to_thread(self._ready.wait, 30)
        if not self.url:
            await self.stop()

    async def stop(self) -> None:
        if self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        await asyncio.to_thread(self._thread.join, 30)
        if self._fault is not None:
            raise self._fault

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as fault:
            self._fault = fault
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        async with booted(self._settings) as application:
            listening = bound_socket(self._settings)
            listener = Listener(application)
            self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            await listener.start(listening)
            self._ready.set()
            await self._stopping.wait()
            application.services.drain.begin()
            await listener.stop(5)
            backend = application.services.engine.deps.store.backend
            self.found.extend(await backend.verify())


def tokened(settings: Settings | None = None) -> Settings:
    """For a server in memory that wants the token."""
    token = ApiToken(name="tests", digest=token_digest(TOKEN))
    return msgspec.structs.replace(dev(settings), tokens=(token,))


@asynccontextmanager
async def serving(settings: Settings | None = None) -> AsyncIterator[Server]:
    """A server that wants the token; its views must agree with its records in the end."""
    server = Server(tokened(settings))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
    assert server.found == []
