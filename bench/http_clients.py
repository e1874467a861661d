"""`python -m bench.http_clients`: processor time of one request, by client. Each client has a
process of its own; the server is a process that answers without looking. aiohttp is measured if
it is installed."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import httpx

from flowfabric.client.http import HttpClient, Message

REQUESTS = 3_000
TOGETHER = 8
_WAIT_S = 30.0
_BODY = b'{"items":[{"execution_id":"x"}]}'
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"

Ask = Callable[[], Awaitable[object]]


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length or 0))
            writer.write(_ANSWER)
    except asyncio.IncompleteReadError:
        writer.close()


async def _run_server() -> None:
    server = await asyncio.start_server(_serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def _own(url: str) -> Ask:
    client = HttpClient(url, {})
    return lambda: client.send(Message("POST", "/v1/x", {}, _BODY), _WAIT_S)


def _httpx(url: str) -> Ask:
    client = httpx.AsyncClient(trust_env=False)
    return lambda: client.post(f"{url}/v1/x", content=_BODY)


def _aiohttp(url: str) -> Ask:
    session: Any = import_module("aiohttp").ClientSession()

    async def ask() -> object:
        async with session.post(f"{url}/v1/x", data=_BODY) as response:
            return await response.read()

    return ask


CLIENTS: dict[str, Callable[[str], Ask]] = {"own": _own, "httpx": _httpx, "aiohttp": _aiohttp}


async def _measure(name: str, port: str) -> None:
    ask = CLIENTS[name](f"http://127.0.0.1:{port}")
    await ask()
    began = time.process_time()

    async def some() -> None:
        for _ in range(REQUESTS // TOGETHER):
            await ask()

    await asyncio.gather(*(some() for _ in range(TOGETHER)))
    each = (time.process_time() - began) / REQUESTS
    print(f"| {name:7} | {each * 1e6:5.0f} µs |", flush=True)


def main() -> None:
    program = [sys.executable, "-W", "ignore", "-m", "bench.http_clients"]
    with subprocess.Popen([*program, "serve"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        for name in CLIENTS:
            if name != "aiohttp" or find_spec("aiohttp"):
                subprocess.run([*program, name, port], check=True, stderr=subprocess.DEVNULL)
        server.terminate()


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    elif sys.argv[1] == "serve":
        asyncio.run(_run_server())
    else:
        asyncio.run(_measure(*sys.argv[1:]))
