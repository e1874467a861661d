"""Server-Sent Events as a client reads them."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from flowfabric.server import Http


class Sent(NamedTuple):
    """One event; a comment has no name."""

    name: str
    data: Any
    own_id: str = ""


class EventSource:
    """A client of one event stream, driven below HTTP: it reads event by event and may hang up."""

    def __init__(self, application: Http, path: str, headers: dict[str, str]) -> None:
        self._application = application
        target, _, query = path.partition("?")
        self._scope = {
            "type": "http",
            "method": "GET",
            "path": target,
            "raw_path": target.encode(),
            "query_string": query.encode(),
            "headers": [
                (b"host", b"127.0.0.1:9090"),
                *((name.lower().encode(), value.encode()) for name, value in headers.items()),
            ],
            "server": ("127.0.0.1", 9090),
        }
        self._sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._gone = asyncio.Event()
        self.status = 0

    async def __aenter__(self) -> "EventSource":
        self._serving = asyncio.create_task(
            self._application(self._scope, self._receive, self._sent.put)  # type: ignore[arg-type]
        )
        start = await self._next()
        self.status = start["status"]
        self.headers = {name.decode(): value.decode() for name, value in start["headers"]}
        return self

    async def __aexit__(self, *_: object) -> None:
        self._gone.set()
        async with asyncio.timeout(15):
            await self._serving

    async def events(self) -> AsyncIterator[Sent]:
        """Events until the server ends the stream."""
        while True:
            message = await self._next()
            for block in message["body"].decode().split("\n\n"):
                if block and not block.startswith(("retry:", ":")):
                    yield _read(block)
            if not message.get("more_body", False):
                return

    async def take(self, n: int) -> list[Sent]:
        """The next events, so many."""
        found: list[Sent] = []
        async with asyncio.timeout(15):
            async for one in self.events():
                found.append(one)
                if len(found) == n:
                    break
        return found

    async def _next(self) -> dict[str, Any]:
        async with asyncio.timeout(15):
            return await self._sent.get()

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}


def _read(block: str) -> Sent:
    fields = dict(line.split(": ", 1) for line in block.splitlines())
    return Sent(fields.get("event", ""), json.loads(fields["data"]), fields.get("id", ""))
