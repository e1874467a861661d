"""`make attack`: a hundred attacking clients in turn, and what another tenant notices of each.

Each attack is compared with a hundred harmless clients that send as many bytes a second, in turn
within the same run. It talks to the loopback only, and stops by itself.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from bench.attacks.clients import ATTACKS, CLIENTS, COMPARED
from bench.http import Connection, Server, server

# Bytes a second of all attackers together.
MOST_BYTES: Final = 5_000_000
MOST_SLOWER: Final = 3.0
MOST_MEMORY_MB: Final = 300
_WORKERS: Final = 8
_PAUSE_S: Final = 0.05
# Too few samples say nothing about the slowest hundredth.
_LEAST_SAMPLES: Final = 100
_TOKENS: Final = {"victim": ("submit", "victim"), "attacker": ("read,submit", "attacker")}


class Seen(NamedTuple):
    """What the other tenant has seen."""

    latencies: list[float]
    memory_mb: float
    bytes_per_second: float
    failures: int


def p99_ms(latencies: Sequence[float]) -> float:
    ordered = sorted(latencies)
    return ordered[int(len(ordered) * 0.99)] * 1_000


def _config(directory: Path) -> Path:
    """A server with a token for each tenant."""
    tables = [
        f'[[token]]\nname = "{name}"\nsha256 = "{sha256(name.encode()).hexdigest()}"\n'
        f"scopes = {json.dumps(scopes.split(','))}\nnamespaces = {json.dumps([namespace])}\n"
        for name, (scopes, namespace) in _TOKENS.items()
    ]
    path = directory / "server.toml"
    path.write_text("\n".join(tables))
    return path


def _memory_mb(running: Server) -> float:
    for line in Path(f"/proc/{running.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1_024
    raise RuntimeError("the server has ended")


class Victim:
    """Submits at an even pace and notes how long each takes."""

    def __init__(self, running: Server) -> None:
        body = b'{"lane_id":"idle","execution_kind":"x","namespace":"victim"}'
        self._request = (
            f"POST /v1/executions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer victim\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode() + body
        self._running = running
        self.latencies: list[float] = []
        self.failures = 0

    async def work(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(_WORKERS):
                group.create_task(self._worker())

    async def _worker(self) -> None:
        connection = await self._running.connect()
        while True:
            connection = await self._once(connection)
            await asyncio.sleep(_PAUSE_S)

    async def _once(self, connection: Connection) -> Connection:
        began = time.perf_counter()
        try:
            status, _ = await asyncio.wait_for(connection.request(self._request), 30)
        except (OSError, TimeoutError):
            connection.close()
            status, connection = 0, await self._running.connect()
        self.latencies.append(time.perf_counter() - began)
        self.failures += status != 201
        return connection


async def beside(running: Server, kind: str, rate: float, seconds: float) -> Seen:
    """What the victim sees beside a crowd of one kind."""
    crowd = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.attacks.clients", kind, str(running.port), "attacker"),
        *(str(rate), str(seconds)),
        stdout=asyncio.subprocess.PIPE,
    )
    victim, memory = Victim(running), _memory_mb(running)
    working = asyncio.create_task(victim.work())
    try:
        ended = asyncio.create_task(crowd.communicate())
        while not ended.done():
            await asyncio.wait({ended}, timeout=0.2)
            memory = max(memory, _memory_mb(running))
        said, _ = ended.result()
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        if crowd.returncode is None:
            with suppress(ProcessLookupError):
                crowd.kill()
    return Seen(victim.latencies, memory, json.loads(said)["sent"] / seconds, victim.failures)


async def compare(running: Server, kind: str, seconds: float, rounds: int) -> bool:
    """Attack and harmless crowd in turn; whether the victim hardly notices."""
    attacked: list[Seen] = []
    calm: list[Seen] = []
    for _ in range(rounds):
        attacked.append(await beside(running, kind, MOST_BYTES, seconds / rounds))
        rate = max(1.0, attacked[-1].bytes_per_second)
        calm.append(await beside(running, COMPARED.get(kind, "submits"), rate, seconds / rounds))
    slow, plain = ([x for one in seen for x in one.latencies] for seen in (attacked, calm))
    ratio = p99_ms(slow) / p99_ms(plain)
    more_mb = max(one.memory_mb for one in attacked) - min(one.memory_mb for one in calm)
    failures = sum(one.failures for one in attacked)
    is_enough = min(len(slow), len(plain)) >= _LEAST_SAMPLES
    holds = ratio < MOST_SLOWER and more_mb < MOST_MEMORY_MB and not failures and is_enough
    kilobytes = attacked[-1].bytes_per_second / 1_000
    print(
        f"{kind:<16}{kilobytes:>9,.0f} kB/s  p99 {p99_ms(slow):>8.1f} ms beside it,"
        f" {p99_ms(plain):>8.1f} ms beside harmless ones: {ratio:>5.2f} x"
        f"  memory {more_mb:>+7.0f} MB  samples {len(slow):>6}  failures {failures}"
        f"  {'holds' if holds else 'DOES NOT HOLD'}",
        flush=True,
    )
    return holds


async def run(options: argparse.Namespace) -> bool:
    held: list[bool] = []
    with tempfile.TemporaryDirectory() as directory:
        url = options.url or f"sqlite:///{Path(directory) / 'attacked.db'}"
        config = _config(Path(directory))
        secret = "5e" * 32
        async with server(url, FF_CONFIG=str(config), FF_WAITPOINT_HMAC_SECRET=secret) as running:
            print(f"{CLIENTS} clients, {options.seconds:g} s each, on {url.partition(':')[0]}")
            await beside(running, "submits", 100_000, 2)
            for kind in options.only or ATTACKS:
                holds = await compare(running, kind, options.seconds, options.rounds)
                held.append(holds)
    return all(held)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make attack")
    parser.add_argument("--seconds", type=float, default=60, help="of each attack")
    parser.add_argument("--rounds", type=int, default=3, help="attack and harmless in turn")
    parser.add_argument("--only", action="append", choices=list(ATTACKS))
    parser.add_argument("--url", default="", help="a store on this host; SQLite without it")
    if not asyncio.run(run(parser.parse_args())):
        sys.exit("an attack is noticed more than it may be")


if __name__ == "__main__":
    main()
