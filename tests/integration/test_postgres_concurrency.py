"""Several stores over one database work on the same flows, lane, budget and gate at once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from flowfabric.app import backend_of
from flowfabric.backend.base import LOG_TOPIC, Backend
from flowfabric.backend.postgres import prefetch, tables
from flowfabric.backend.postgres.connecting import Target
from flowfabric.backend.postgres.connection import Connection, Statement
from flowfabric.backend.postgres.horizon import Horizon
from flowfabric.backend.postgres.tables import PostgresTables
from flowfabric.backend.sql.layout import Row
from flowfabric.backend.types import Discrepancy, EventFilter
from flowfabric.config import Settings, parse_store_url
from flowfabric.core.tokens import Secret
from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine import Engine, engine_on
from flowfabric.errors import FlowFabricError
from tests.clock import VirtualClock
from tests.conformance.driver import Driver
from tests.conformance.graphs import Graph, chain
from tests.conformance.limiting import new_budget, report, usage
from tests.postgres_server import shared_postgres
from tests.stores import url_of

_STORES = 3
_LOOPS = 2
_WIDE = Graph(arrows=[arrow for n in range(8) for arrow in (("start", f"m{n}"), (f"m{n}", "end"))])


@asynccontextmanager
async def _drivers(directory: Path, count: int = _STORES) -> AsyncIterator[list[Driver]]:
    """As many engines, each over a store of its own."""
    url = url_of("postgres", directory)
    async with AsyncExitStack() as stack:
        drivers = []
        for _ in range(count):
            backend = backend_of(Settings(store=parse_store_url(url)))
            await backend.prepare()
            stack.push_async_callback(backend.close)
            engine = engine_on(backend)
            stack.push_async_callback(engine.close)
            await engine.keys.boot(Secret("5e" * 32))
            drivers.append(Driver(engine, VirtualClock(), TimerSweep(engine)))
        yield drivers


def _backend(driver: Driver) -> Backend:
    return driver.engine.deps.store.backend


async def _drain(driver: Driver, done: Counter[str]) -> None:
    """Complete what can be claimed until nothing has come for a while."""
    idle = 0
    while idle < 20:
        claimed = await driver.claim_all(n=4)
        idle = 0 if claimed else idle + 1
        for one in claimed:
            await driver.engine.outcomes.complete(one.proof, b"done")
            done[one.proof.execution_id] += 1
        if not claimed:
            await asyncio.sleep(0.02)


async def _run_flows(drivers: list[Driver]) -> tuple[Counter[str], list[str], list[Discrepancy]]:
    """How often each member was completed, the flows that did not end, and what verify finds."""
    graphs = [_WIDE, chain("a", "b", "c", "d"), _WIDE, chain("a", "b"), _WIDE, _WIDE]
    flows = [await drivers[0].graph(graph) for graph in graphs]
    done: Counter[str] = Counter()
    await asyncio.gather(*(_drain(driver, done) for driver in drivers for _ in range(_LOOPS)))
    backend = _backend(drivers[0])
    found = await backend.flows([flow.flow_id for flow in flows])
    unfinished = [
        one.flow_id
        for one in found
        if one is not None and one.counts.get("completed", 0) < one.node_count
    ]
    return done, unfinished, list(await backend.verify())


async def test_flows_end_once_and_whole_on_several_stores(tmp_path: Path) -> None:
    async with _drivers(tmp_path) as drivers:
        done, unfinished, wrong = await _run_flows(drivers)
        assert unfinished == []
        assert wrong == []
        assert len(done) == 4 * 10 + 4 + 2
        assert set(done.values()) == {1}
        # One entry for the end of each member, in the order of its life.
        page = await _backend(drivers[1]).events(
            await _backend(drivers[1]).cursor("oldest"), EventFilter(), 1_000
        )
        ends = Counter(
            event.entry.execution_id for event in page.events if event.entry.kind == "completed"
        )
        assert set(ends.values()) <= {1}


async def test_without_locks_of_flows_they_break(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above can fail: it does when flows are not locked."""
    for module, name in ((prefetch, "_LOCK_FLOWS"), (tables, "_FREE_FLOWS")):
        text = getattr(module, name)
        monkeypatch.setattr(
            module, name, text.replace(" FOR UPDATE SKIP LOCKED", "").replace(" FOR UPDATE", "")
        )
    for _ in range(5):
        async with _drivers(tmp_path) as drivers:
            try:
                _, unfinished, wrong = await _run_flows(drivers)
            except FlowFabricError:
                return
            if unfinished or wrong:
                return
    pytest.fail("flows were whole without their locks")


async def test_a_lane_and_a_budget_are_shared(tmp_path: Path) -> None:
    async with _drivers(tmp_path) as drivers:
        budget = await new_budget(drivers[0].engine, {"usd": 100_000})
        ids = await asyncio.gather(
            *(drivers[n % _STORES].submit(input=b"%d" % n) for n in range(120))
        )
        done: Counter[str] = Counter()
        await asyncio.gather(
            *(_drain(driver, done) for driver in drivers),
            *(report(drivers[n % _STORES].engine, budget, usd=1) for n in range(90)),
        )
        assert done == Counter(ids)
        assert (await usage(drivers[0].engine, budget))["usd"] == 90
        assert await _backend(drivers[0]).verify() == []


async def test_one_key_makes_one_execution(tmp_path: Path) -> None:
    async with _drivers(tmp_path) as drivers:
        ids = await asyncio.gather(
            *(drivers[n % _STORES].submit(idempotency_key=f"key-{n % 10}") for n in range(60))
        )
        assert len(set(ids)) == 10


async def _engine_reads(engine: Engine, execution_id: str) -> str:
    record, _ = await engine.deps.record(execution_id)
    return record.state


async def test_a_foreign_transaction_delays_only_the_ordered_log(tmp_path: Path) -> None:
    async with _drivers(tmp_path, 2) as (one, other):
        address = shared_postgres().address
        with psycopg.connect(address) as foreign:
            foreign.execute("CREATE TEMP TABLE busy (n int)")
            held = await one.started()
            await other.engine.outcomes.complete(held.proof, b"done")
            assert await _engine_reads(one.engine, held.proof.execution_id) == "completed"
            start = await _backend(one).cursor("oldest")
            log = _backend(one).notifier().subscribe(LOG_TOPIC)
            assert (await _backend(one).events(start, EventFilter(), 100)).events == ()
            foreign.rollback()
        # Whoever reads the log is told to look again, though nothing of ours has changed.
        assert await log.wait(10)
        assert len((await _backend(one).events(start, EventFilter(), 100)).events) >= 2
        log.close()


async def test_a_reader_sees_no_further_than_its_own_snapshot(tmp_path: Path) -> None:
    """Another thread learns that the log is complete while this one holds an older snapshot."""
    async with _drivers(tmp_path, 1):
        pass
    address = shared_postgres().address
    target = _target(address)
    horizon = Horizon()

    class Interrupted(PostgresTables):
        def send(self, statements: Sequence[Statement]) -> list[list[Row]]:
            answers = super().send(statements)
            first.commit()
            other.begin(reading=True)
            assert other.log_bounds()[1] == second_number
            return answers

    with (
        closing(Connection(target)) as connection,
        closing(Connection(target)) as another,
        psycopg.connect(address) as first,
        psycopg.connect(address, autocommit=True) as second,
    ):
        reader = Interrupted(connection, horizon=horizon)
        other = PostgresTables(another, horizon=horizon)
        first_number = _log(first)
        second_number = _log(second)
        reader.begin(reading=True)
        _, end = reader.log_bounds()
        assert end < first_number < second_number
        assert reader.is_log_behind
        assert other.is_log_behind is False


async def test_the_youngest_transaction_holds_the_log_back(tmp_path: Path) -> None:
    """A snapshot does not name a transaction that began after the last one that ended."""
    async with _drivers(tmp_path, 1):
        pass
    address = shared_postgres().address
    with (
        closing(Connection(_target(address))) as connection,
        psycopg.connect(address, autocommit=True) as ended,
        psycopg.connect(address) as running,
    ):
        tables = PostgresTables(connection)
        _log(ended)
        number = _log(running)
        tables.begin(reading=True)
        assert tables.log_bounds()[1] < number
        assert tables.is_log_behind
        running.commit()
        assert tables.log_bounds()[1] == number


def _target(address: str) -> Target:
    parameters = psycopg.conninfo.conninfo_to_dict(address)
    return Target({name: str(value) for name, value in parameters.items()})


def _log(connection: psycopg.Connection[Any]) -> int:
    """Add an entry to the log; its number."""
    statement = "INSERT INTO flowfabric.log (at, body) VALUES (1, '') RETURNING number"
    (number,) = connection.execute(statement).fetchone() or (0,)
    return int(number)


async def test_a_store_hears_what_another_one_did(tmp_path: Path) -> None:
    async with _drivers(tmp_path, 2) as (one, other):
        subscription = _backend(one).notifier().subscribe("lane:default:default")
        await subscription.wait_subscribed(10)
        subscription.take()
        await other.submit()
        assert await subscription.wait(10)
        subscription.close()


async def test_ended_connections_are_opened_again(tmp_path: Path) -> None:
    async with _drivers(tmp_path, 1) as (driver,):
        held = await driver.started()
        server = shared_postgres()
        server.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'flowfabric'"
        )
        assert (await driver.record(held.proof.execution_id)).state == "active"
        await driver.engine.outcomes.complete(held.proof, b"done")
        assert (await driver.record(held.proof.execution_id)).state == "completed"
