"""A loopback server that speaks the protocol and says what a test wants of it: for servers that
cannot be had here, such as one of another kind or of an old release."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

Answer = Callable[[list[str]], bytes]


def bulk(text: str) -> bytes:
    return f"${len(text.encode())}\r\n{text}\r\n".encode()


async def _command(reader: asyncio.StreamReader) -> list[str]:
    size = int((await reader.readline())[1:])
    words = []
    for _ in range(size):
        length = int((await reader.readline())[1:])
        words.append((await reader.readexactly(length + 2))[:-2].decode(errors="replace"))
    return words


@asynccontextmanager
async def resp_server(answer: Answer) -> AsyncIterator[int]:
    """Its port, for as long as the block lasts."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while not reader.at_eof():
                words = await _command(reader)
                writer.write(b"+OK\r\n" if words[0] == "HELLO" else answer(words))
        except (ValueError, ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
