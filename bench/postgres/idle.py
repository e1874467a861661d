"""What servers and workers ask of Postgres while nothing happens."""

from contextlib import AsyncExitStack
from typing import Final

import msgspec

from bench.measure import idled
from bench.postgres.rig import postgres_server, server_cpu_s
from bench.report import Options, Ratio, Report
from flowfabric import FlowFabric
from flowfabric.config import Settings, parse_store_url
from flowfabric.core.tokens import Secret
from tests.postgres_server import PostgresServer

# As many processes, each with its duties.
SERVERS: Final = 3
WORKERS: Final = 100
MOST: Final = 50.0
_TRANSACTIONS: Final = (
    "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
)


async def run(options: Options) -> Report:
    with postgres_server() as server:
        store = parse_store_url(server.address)
        settings = Settings(store=store, waitpoint_secret=Secret("5e" * 32))
        async with AsyncExitStack() as stack:
            for number in range(SERVERS):
                fabric = await stack.enter_async_context(FlowFabric(settings=settings))
                fabric.task(_nothing)
                for _ in range(number, WORKERS, SERVERS):
                    await stack.enter_async_context(fabric.worker())
            # What they do once, when they start, is over.
            await idled("", options.seconds / 2)
            before, spent = _transactions(server), server_cpu_s(server)
            found = await idled("postgres: idle", options.seconds)
            each_second = (_transactions(server) - before) / found.seconds
            spent = server_cpu_s(server) - spent
    name = f"postgres: {WORKERS} idle workers, {SERVERS} servers"
    return Report(
        [msgspec.structs.replace(found, server_cpu_seconds=spent)],
        [
            Ratio.at_most(f"{name}: transactions a second", each_second, MOST),
            Ratio.seen(f"{name}: % of a core there", 100 * spent / found.seconds),
            Ratio.seen(f"{name}: % of a core here", 100 * found.cpu_seconds / found.seconds),
        ],
    )


async def _nothing() -> None:
    """A task that is never submitted."""


def _transactions(server: PostgresServer) -> int:
    ((found,),) = server.run(_TRANSACTIONS)
    return int(found)
