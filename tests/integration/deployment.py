"""A deployment that has something of everything a store keeps, and what it shows of that."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

from flowfabric.app import backend_of, movable_of
from flowfabric.backend.moving import Movable, Move, MoveOrder, Progress
from flowfabric.config import Settings, parse_store_url
from flowfabric.core.ids import PartitionCounts
from flowfabric.core.journal import JournalEntry
from flowfabric.core.limits.gates import key_gate, quota_gate
from flowfabric.engine.partitions import agree_on_partitions
from flowfabric.errors import FlowFabricError
from flowfabric.operations.budgets import NewReservation
from flowfabric.operations.schedules import NewSchedule
from tests.clock import VirtualClock
from tests.conformance.driver import EVERYWHERE, Driver
from tests.conformance.graphs import Graph, Member, chain, quorum
from tests.conformance.limiting import new_budget, new_quota, report
from tests.conformance.streaming import append, frame, live, patch
from tests.conformance.waiting import GO, pause
from tests.golden.scenarios import Day
from tests.model.comparing import Known, picture
from tests.model.sides import COUNTS, Side
from tests.postgres_server import shared_postgres
from tests.stores import SEARCHABLE, Clock, url_of

# What stays behind: the log, and who is there.
_LEFT: Final = ("events", "workers")
_ACTS: Final = (
    *("submit", "submit", "graph", "claim", "claim", "finish", "finish", "hand_back", "park"),
    *("cancel", "replay", "replay_flow", "cancel_flow", "wait", "purge"),
)
_BODY: Final = bytes(range(256))


class EmptyStores:
    """Empty stores by their kind. A database is of one test only: what closes it would stay."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._databases: list[str] = []
        self._made = 0

    def __call__(self, name: str) -> Settings:
        return self.settings(self.url(name))

    def settings(self, url: str, counts: PartitionCounts = COUNTS) -> Settings:
        return Settings(store=parse_store_url(url), counts=counts, searchable_tags=SEARCHABLE)

    def url(self, name: str) -> str:
        self._made += 1
        if name == "postgres":
            return self._database(f"ff_move_{self._made}")
        directory = self._directory / str(self._made)
        directory.mkdir()
        return f"sqlite:///{directory}/new.db" if name == "sqlite" else url_of(name, directory)

    def _database(self, name: str) -> str:
        server = shared_postgres()
        server.run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        server.run(f"CREATE DATABASE {name}")
        self._databases.append(name)
        return server.address.replace("/postgres", f"/{name}")

    def drop(self) -> None:
        for name in self._databases:
            shared_postgres().run(f"DROP DATABASE {name} WITH (FORCE)")


async def side_of(settings: Settings, clock: Clock = None) -> Side:
    """An engine on a store, after the checks of a boot."""
    backend = backend_of(settings, clock)
    side = Side(settings.store.scheme, backend)
    try:
        await backend.prepare()
        await agree_on_partitions(backend, COUNTS)
        await side.open()
    except FlowFabricError:
        await backend.close()
        raise
    return side


class Deployment:
    """What was made, so that it can be asked for again."""

    def __init__(self) -> None:
        self.known = Known()
        self.budgets: list[str] = []
        self.gates: list[str] = [key_gate("default", "one")]

    async def fill(self, side: Side, clock: VirtualClock) -> None:
        day = Day(side, clock, Random(7), _ACTS)
        await day.spend(60)
        self.known = day.known
        driver = Driver(side.engine, clock, side.sweep)
        await self._limits(driver)
        await self._executions(driver)
        await self._streams(driver)
        await self._flows(driver)
        await side.engine.schedules.put("tick", NewSchedule(kind="work", every_ms=3_600_000))
        await side.engine.schedules.put("gone", NewSchedule(kind="work", every_ms=3_600_000))
        await side.engine.schedules.delete("gone")
        await side.rest()

    async def _executions(self, driver: Driver) -> None:
        for situation in EVERYWHERE:
            await driver.reach(situation, input=_BODY)
        await driver.submit(idempotency_key="a key: {odd}", policy={"dedup_window_ms": 86_400_000})
        await driver.submit(tags={"app.team": "red", "note": "x y"})
        for _ in range(3):
            await driver.submit(policy={"fairness_key": "one, two"}, lane="gpu")
        paused = await pause(driver, GO)
        await paused.signal("other")
        held = (await driver.started(lane="steps")).proof
        steps = [JournalEntry(f"step {n}", n, f"d{n}", _BODY) for n in range(5)]
        await driver.engine.journals.append(held, steps)
        self.known.journals.add(held.execution_id)

    async def _streams(self, driver: Driver) -> None:
        held = (await driver.started(lane="output")).proof
        await append(driver, held, frame(_BODY), live(), patch(b'{"a": 1}'), frame(b"y", seq=7))
        await append(driver, held, frame(b"z"))
        alone = (await driver.started(lane="alone")).proof
        await append(driver, alone, live(), live(b"more"))
        self.known.streams |= {(held.execution_id, 0), (alone.execution_id, 0)}

    async def _flows(self, driver: Driver) -> None:
        fan = Graph(
            arrows=[("a", "d"), ("b", "d"), ("c", "d")],
            members={"a": Member(input=_BODY)},
            groups={"d": quorum(2, "let_run")},
        )
        for graph, ended in ((chain("x", "y", "z"), "x"), (fan, "a")):
            flow = await driver.graph(graph)
            await flow.complete(ended, result=_BODY)
            self.known.flows.add(flow.flow_id)

    async def _limits(self, driver: Driver) -> None:
        engine = driver.engine
        root = await new_budget(engine, {"tokens": 1_000, "cost": 50}, {"tokens": 100})
        leaf = await new_budget(engine, {"tokens": 500}, parent_id=root)
        empty = await new_budget(engine, {"t": 1})
        await report(engine, leaf, "once: only", tokens=3)
        await report(engine, empty, t=1)
        hold = NewReservation(reservation_id="r: 1", dimensions={"tokens": 9}, ttl_ms=10**8)
        await engine.reservations.reserve(leaf, hold)
        quota = await new_quota(engine, rate=2, window=3_600, cap=2)
        self.budgets, self.gates = [root, leaf, empty], [*self.gates, quota_gate(quota)]
        limited: list[dict[str, Any]] = [
            {"budget_ids": [leaf]},
            {"budget_ids": [empty]},
            *[{"quota_ids": [quota]}] * 3,
            *[{"concurrency_key": "one", "concurrency_limit": 1}] * 2,
        ]
        for number, fields in enumerate(limited):
            await driver.submit(lane="limited", policy=fields)
            driver.clock.advance(number + 1)
        for held in await driver.claim_all(lanes=("limited",), n=9, lease_ms=3_600_000):
            await engine.budgets.record_spend(leaf, held.execution_id, {"tokens": 5})

    async def shown(self, side: Side) -> dict[str, object]:
        """All of it, by every way to read it, but what stays behind."""
        seen = await picture(side, self.known)
        backend = side.backend
        return {name: value for name, value in seen.items() if name not in _LEFT} | {
            "budgets": await backend.budgets(self.budgets),
            "gates": await backend.gates(self.gates),
            "attached": [await backend.attached(one, "", 100) for one in self.budgets],
        }


@asynccontextmanager
async def looked_at(
    settings: Settings, clock: Clock = None, *, is_new: bool = False
) -> AsyncIterator[Movable]:
    """A store as a move sees it."""
    store = movable_of(settings, clock, is_new=is_new)
    try:
        await store.open()
        yield store
    finally:
        await store.close()


async def stored_rows(settings: Settings, clock: Clock = None) -> list[tuple[str, object, object]]:
    async with looked_at(settings, clock) as store:
        return await rows_of(store)


async def rows_of(store: Movable) -> list[tuple[str, object, object]]:
    rows, cursor, is_over = [], "", False
    while not is_over:
        page = await store.page(cursor)
        rows += [(table.name, key, value) for table, key, value in page.rows]
        cursor, is_over = page.cursor, not page.cursor
    return sorted(rows, key=lambda row: (row[0], str(row[1])))


def no_report(_: Progress) -> None:
    """Nobody looks."""


async def move(
    source: Settings,
    target: Settings,
    clock: Clock = None,
    report: Callable[[Progress], None] = no_report,
    **order: Any,
) -> None:
    async with looked_at(source, clock) as ours, looked_at(target, clock, is_new=True) as theirs:
        await Move(ours, theirs, report).run(MoveOrder(**({"wait_s": 0.0} | order)))
