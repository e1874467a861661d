"""How often a mechanism waits for Postgres: twice, three times with members of flows."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from flowfabric.app import backend_of
from flowfabric.backend.base import Backend
from flowfabric.backend.postgres import connection
from flowfabric.backend.postgres.committer import PostgresCommitter
from flowfabric.backend.postgres.session import PostgresSession
from flowfabric.backend.sql.batches import Share
from flowfabric.backend.types import ConfigPut, Worker
from flowfabric.config import Settings, parse_store_url
from flowfabric.core.tokens import Secret
from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine import engine_on
from flowfabric.operations.budgets import NewReservation
from tests.clock import VirtualClock
from tests.conformance.driver import Driver
from tests.conformance.graphs import Graph, chain
from tests.conformance.limiting import new_budget, new_quota, report
from tests.conformance.streaming import append, frame, live, patch
from tests.conformance.test_finish_and_claim import ORDER, done
from tests.conformance.test_journal import FETCH
from tests.postgres_server import shared_postgres
from tests.stores import url_of


class Trips:
    """The trips of each transaction, by mechanism."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        transact = PostgresCommitter._transact

        def counted(committer: PostgresCommitter, shares: list[Share]) -> Any:
            connection = committer.link.tables().connection
            before = connection.trips
            answer = transact(committer, shares)
            self.seen.append((shares[0].call.task.name, connection.trips - before))
            return answer

        monkeypatch.setattr(PostgresCommitter, "_transact", counted)

    def take(self, name: str) -> list[int]:
        found = [trips for seen, trips in self.seen if seen == name]
        self.seen.clear()
        return found


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Trips:
    trips = Trips()
    trips.watch(monkeypatch)
    return trips


@pytest.fixture
async def backend(tmp_path: Any) -> AsyncIterator[Backend]:
    """With the clock of the server, which is asked in the first trip."""
    opened = backend_of(Settings(store=parse_store_url(url_of("postgres", tmp_path))))
    await opened.prepare()
    yield opened
    await opened.close()


@pytest.fixture
async def driver(backend: Backend, trips: Trips) -> AsyncIterator[Driver]:
    engine = engine_on(backend)
    await engine.keys.boot(Secret("5e" * 32))
    driver = Driver(engine, VirtualClock(), TimerSweep(engine))
    # The first execution also takes a block of numbers and notes its lane.
    await driver.submit()
    await driver.claim()
    trips.seen.clear()
    yield driver
    await engine.close()


async def test_an_execution_takes_two_trips_a_step(driver: Driver, trips: Trips) -> None:
    await driver.submit(input=b"x", idempotency_key="k")
    assert trips.take("create") == [2]
    held = (await driver.claim()).proof
    assert trips.take("claim") == [2]
    await driver.engine.leases.renew(held, 30_000)
    assert trips.take("apply") == [2]
    await append(driver, held, frame(b"1", seq=1))
    assert trips.take("append") == [2]
    await driver.engine.journals.append(held, [FETCH])
    assert trips.take("journal") == [2]
    await driver.suspend(held)
    assert trips.take("apply") == [2]
    await driver.take(await driver.submit())
    assert trips.take("lease") == [2]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whether each commit waits for the disk, on a server where they all would."""
    monkeypatch.setitem(connection._SETTINGS, "synchronous_commit", "on")
    found: list[str] = []
    commit = PostgresSession.commit

    def committed(session: PostgresSession) -> None:
        found.append(session.rows("SELECT current_setting('synchronous_commit')")[0][0])
        commit(session)

    monkeypatch.setattr(PostgresSession, "commit", committed)
    return found


async def test_only_what_may_be_lost_does_not_wait_for_the_disk(
    waits: list[str], driver: Driver
) -> None:
    engine, held = driver.engine, (await driver.started()).proof
    waits.clear()
    await engine.leases.progress(held, 50)
    await append(driver, held, live(seq=1), live(seq=2))
    assert waits == ["off", "off"]
    waits.clear()
    await append(driver, held, frame(b"kept", seq=3), live(seq=4))
    await append(driver, held, patch(b"{}", seq=5))
    await engine.leases.renew(held, 30_000)
    await engine.outcomes.complete(held, b"done")
    assert waits == ["on", "on", "on", "on"]


async def test_what_may_be_lost_takes_no_further_trip(driver: Driver, trips: Trips) -> None:
    held = (await driver.started()).proof
    await driver.engine.leases.progress(held, 50)
    trips.seen.clear()
    await driver.engine.leases.progress(held, 60)
    assert trips.take("apply") == [2]
    await append(driver, held, live(seq=1))
    assert trips.take("append") == [2]


async def test_members_take_one_more(driver: Driver, trips: Trips) -> None:
    # Of a queue where nothing was found before, the name is fetched first.
    await driver.graph(chain("a", "b"))
    await driver.claim()
    trips.seen.clear()
    await driver.graph(chain("a", "b"))
    assert trips.take("create_graph") == [2]
    held = (await driver.claim()).proof
    assert trips.take("claim") == [3]
    await driver.engine.leases.renew(held, 30_000)
    assert trips.take("apply") == [2]
    await driver.engine.outcomes.complete(held, b"done")
    assert trips.take("apply") == [3]


@pytest.mark.parametrize("kinds", [None, ("work",)], ids=["any-kind", "one-kind"])
async def test_finish_and_claim_takes_three(
    driver: Driver, trips: Trips, kinds: tuple[str, ...] | None
) -> None:
    """Behind the writes a claim for any kind asks which queues have work, and in the same trip for
    the best of those that had some the last time."""
    order = msgspec.structs.replace(ORDER, kinds=kinds)
    for _ in range(2):
        await driver.submit()
    held = [await driver.claim() for _ in range(2)]
    for one in held:
        ready = await driver.submit()
        trips.seen.clear()
        answer = await driver.engine.finishing.finish_and_claim([done(one)], order)
        assert [claimed.execution_id for claimed in answer.claimed] == [ready]
        assert trips.take("finish") == [3]


async def test_limits_take_two(driver: Driver, trips: Trips) -> None:
    engine = driver.engine
    budget, quota = await new_budget(engine, {"usd": 100}), await new_quota(engine, cap=1)
    trips.seen.clear()
    await report(engine, budget, "once", usd=3)
    assert trips.take("spend") == [2]
    child = await new_budget(engine, {"usd": 100}, parent_id=budget)
    trips.seen.clear()
    asked = NewReservation(reservation_id="hold", dimensions={"usd": 3}, ttl_ms=60_000)
    await engine.reservations.reserve(child, asked)
    assert trips.take("reserve") == [2]
    await engine.reservations.commit(child, "hold", {"usd": 2})
    assert trips.take("commit") == [2]
    await report(engine, child, usd=1)
    assert trips.take("spend") == [2]
    await driver.submit(policy={"budget_ids": [budget], "quota_ids": [quota]})
    held = (await driver.claim()).proof
    assert trips.take("admit") == [2]
    await engine.leases.renew(held, 60_000)
    assert trips.take("extend") == [2]
    await engine.outcomes.complete(held, b"done")
    await engine.deps.slots.drain()
    assert trips.take("vacate") == [2]


async def test_a_batch_takes_no_more_than_one(driver: Driver, trips: Trips) -> None:
    """Of members of one flow that end together, too, and of executions with all that they may
    have."""
    keyed = {"fairness_key": "fair"}
    await asyncio.gather(
        *(driver.submit(idempotency_key=f"key-{n}", input=b"x", policy=keyed) for n in range(8))
    )
    assert set(trips.take("create")) == {2}
    flow = await driver.graph(Graph(arrows=[(f"m{n}", "end") for n in range(8)]))
    held = [(await flow.take(f"m{n}")).proof for n in range(8)]
    trips.seen.clear()
    await asyncio.gather(*(driver.engine.outcomes.complete(one, b"done") for one in held))
    assert set(trips.take("apply")) == {3}


async def test_presence_and_config_take_two(backend: Backend, trips: Trips) -> None:
    worker = Worker(namespace="n", worker_id="w", worker_instance_id="i", ttl_ms=10_000)
    await backend.register([worker])
    assert trips.take("register") == [2]
    await backend.heartbeat([("n", "i")])
    assert trips.take("heartbeat") == [2]
    await backend.leave([("n", "i")])
    assert trips.take("leave") == [2]
    for version in range(2):
        await backend.config_put([ConfigPut("document", version, b"body")])
        assert trips.take("config_put") == [2]


async def test_a_purge_takes_a_few_for_many(driver: Driver, backend: Backend, trips: Trips) -> None:
    """What belongs to executions is dropped without a look at it."""
    at_once = {"retention_ms": 0}
    await asyncio.gather(*(driver.submit(input=b"x", policy=at_once) for _ in range(20)))
    claimed = await driver.claim_all(n=20)
    await asyncio.gather(*(driver.engine.outcomes.complete(one.proof, b"y") for one in claimed))
    trips.seen.clear()
    assert await backend.purge(20) == 20
    (taken,) = trips.take("purge")
    assert taken <= 20
    assert shared_postgres().run("SELECT count(*) FROM flowfabric.blob") == [(0,)]
