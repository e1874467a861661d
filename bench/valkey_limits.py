"""Limits on Valkey: what they cost the server, beside bare commands that count the same."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from uuid import uuid4

from bench.measure import Cycle, Measure, measure
from bench.raw_valkey import valkey_server
from bench.report import Options, Ratio, Report
from flowfabric.app import open_engine
from flowfabric.backend.valkey.connection import Login
from flowfabric.backend.valkey.node import Node
from flowfabric.config import Settings, StoreUrl
from flowfabric.core.ids import compose
from flowfabric.core.limits.asks import Admission, Ask, BudgetAsk, KeyAsk, QuotaAsk
from flowfabric.core.tokens import Secret
from flowfabric.engine import Engine
from tests.valkey_server import ValkeyServer

CALLERS = 64
Make = Callable[[Engine], Awaitable[Cycle]]
_DAY_MS = 86_400_000


class _Costed(Measure, frozen=True, kw_only=True):
    """With the server's own time in functions, per cycle."""

    server_us: float


async def report(options: Options, kinds: dict[str, Make], wide: "Wide") -> Report:
    cycles = options.cycles // 2
    with valkey_server() as server:
        async with _raw_spends(server) as one:
            raw = await _measured("valkey: raw counts and a mark", one, cycles)
        found = {name: await _run(server, name, make, cycles) for name, make in kinds.items()}

        async def admitting(engine: Engine) -> Cycle:
            return _admissions(engine, await wide(engine))

        admit = await _run(server, "admit: budget, quota, key", admitting, cycles)
    spend, tree = found["spend, one budget"], found["spend, tree of three"]
    free, gated = found["no limits"], found["budget and quota"]
    share = spend.per_second / raw.per_second
    return Report(
        [raw, *found.values(), admit],
        [
            Ratio.at_least("valkey, 64 callers: spend / raw counts and a mark", share, 0.2),
            Ratio.at_most("valkey: server µs per spend", spend.server_us, 30),
            Ratio.at_most("valkey: server µs per spend, tree of three", tree.server_us, 40),
            Ratio.at_most("valkey: server µs per admit (budget, quota, key)", admit.server_us, 40),
            Ratio.at_most(
                "valkey, 64 callers: processor time with limits / without",
                gated.cpu_us / free.cpu_us,
                3.0,
            ),
        ],
    )


Wide = Callable[[Engine], Awaitable[dict[str, object]]]


async def _run(server: ValkeyServer, what: str, make: Make, cycles: int) -> _Costed:
    server.clean()
    store = StoreUrl("valkey", host="127.0.0.1", port=server.port)
    engine = await open_engine(Settings(store=store, waitpoint_secret=Secret("5e" * 32)))
    node = Node("127.0.0.1", server.port, Login())
    try:
        one = await make(engine)
        await measure("warm-up", one, CALLERS, cycles // 10)
        before = await _function_us(node)
        found = await measure(f"valkey: {what}", one, CALLERS, cycles)
        spent = await _function_us(node) - before
    finally:
        await node.close()
        await engine.close()
        await engine.deps.store.backend.close()
    fields = {name: getattr(found, name) for name in found.__struct_fields__}
    return _Costed(**fields, server_us=spent / found.cycles)


async def _measured(name: str, one: Cycle, cycles: int) -> Measure:
    await measure("warm-up", one, CALLERS, cycles // 10)
    return await measure(name, one, CALLERS, cycles)


async def _function_us(node: Node) -> int:
    """How long the server has run functions so far."""
    facts = str(await node.run("INFO", "commandstats"))
    return sum(int(line.partition("usec=")[2].partition(",")[0]) for line in _lines(facts))


def _lines(facts: str) -> list[str]:
    return [part for part in facts.replace("\\r\\n", "\n").split() if "cmdstat_fcall" in part]


@asynccontextmanager
async def _raw_spends(server: ValkeyServer) -> AsyncIterator[Cycle]:
    """Count two dimensions and keep a mark, unchecked, all callers over one connection."""
    server.clean()
    node = Node("127.0.0.1", server.port, Login())

    async def spend() -> None:
        await node.run("SET", f"mark:{uuid4()}", 1, "NX", "PX", _DAY_MS)
        await node.run("HINCRBY", "budget", "tokens", 3)
        await node.run("HINCRBY", "budget", "cost", 1)

    yield spend
    await node.close()


def _admissions(engine: Engine, policy: dict[str, object]) -> Cycle:
    budgets, quotas = policy["budget_ids"], policy["quota_ids"]
    assert isinstance(budgets, list)
    assert isinstance(quotas, list)
    asks: tuple[Ask, ...] = (
        *map(BudgetAsk, budgets),
        *map(QuotaAsk, quotas),
        KeyAsk("default", "bench", 1_000_000),
    )

    async def admit() -> None:
        own = compose(7, str(uuid4()))
        item = Admission(execution_id=own, asks=asks, holder=own, hold_ms=30_000, rank=1)
        await engine.deps.store.admit(item)

    return admit
