"""A server that says what it is told to say, in order, and then says the last again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from flowfabric.operations.answers import encode

CUT = b""


def answer(status: int, body: object = None, **headers: str) -> bytes:
    content = body if isinstance(body, bytes) else encode(body)
    named = {"content-length": str(len(content)), **headers}
    lines = [f"HTTP/1.1 {status} Whatever"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in named.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


def refusal(status: int, kind: str, *, retryable: bool, **headers: str) -> bytes:
    body = {"error": f"{kind}: why", "kind": kind, "retryable": retryable}
    return answer(status, body, **headers)


class Scripted:
    def __init__(self, script: tuple[bytes, ...]) -> None:
        self._script = script
        self.requests: list[bytes] = []
        self.answered = asyncio.Event()
        self.url = ""
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while head := await _head(reader):
                self.requests.append(head)
                said = self._script[min(len(self.requests), len(self._script)) - 1]
                if not said:
                    return
                writer.write(said)
                await writer.drain()
                self.answered.set()
        finally:
            writer.close()
            self._writers.discard(writer)

    def cut(self) -> None:
        """Close the connections that are open."""
        for writer in self._writers:
            writer.close()


async def _head(reader: asyncio.StreamReader) -> bytes:
    """One request, its body included; nothing when the client is gone."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            head += await reader.readexactly(int(line.partition(b":")[2]))
    return head


@asynccontextmanager
async def saying(*script: bytes) -> AsyncIterator[Scripted]:
    scripted = Scripted(script)
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    scripted.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield scripted
    finally:
        server.close()
