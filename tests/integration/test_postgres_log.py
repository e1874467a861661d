"""The ordered log while transactions commit out of order, and while somebody else's stays open."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import psycopg
import pytest

from flowfabric.app import open_engine
from flowfabric.backend.base import LOG_TOPIC
from flowfabric.backend.postgres.horizon import Horizon
from flowfabric.backend.types import EventFilter, EventPage, StoredEvent
from flowfabric.core.retention import LogLimits
from flowfabric.engine import Engine
from flowfabric.engine.attempts import claims
from flowfabric.engine.executions import waits
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.engine.streams import tails
from flowfabric.operations.executions import Submission
from flowfabric.operations.streams import Tail
from flowfabric.operations.workers import ClaimOrder
from tests.conformance.streaming import SOON_S, frame
from tests.integration.sharer import settings_for
from tests.postgres_server import shared_postgres
from tests.stores import url_of

STORES = 4
LIVES = 48
TURNS = 4
SCHEMA = "unordered"
# Entries have their numbers when this runs, and nobody sees them before it is over.
SLOW_COMMITS = f"""
DROP TRIGGER IF EXISTS slow_commit ON {SCHEMA}.log;
CREATE OR REPLACE FUNCTION {SCHEMA}.dawdle() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_sleep(random() * 0.03); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER slow_commit AFTER INSERT ON {SCHEMA}.log
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.number % 5 = 0)
    EXECUTE FUNCTION {SCHEMA}.dawdle();
"""
Lives = dict[str, list[tuple[int, str]]]


@asynccontextmanager
async def engines(url: str, count: int) -> AsyncIterator[list[Engine]]:
    """As many engines, each over a store of its own."""
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(count):
            engine = await open_engine(settings_for(url))
            stack.push_async_callback(engine.deps.store.backend.close)
            stack.push_async_callback(engine.close)
            opened.append(engine)
        yield opened


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Of a schema of its own, that the other tests do not wait for."""
    yield f"{url_of('postgres', tmp_path)}?schema={SCHEMA}"
    shared_postgres().run(f"DROP SCHEMA {SCHEMA} CASCADE")


async def live(stores: Sequence[Engine], number: int) -> str:
    """One execution, each step of which is done by another store than the one before."""
    at = iter(stores[(number + place) % len(stores)] for place in range(2 * TURNS + 1))
    one = await next(at).executions.create(Submission(kind="life"))
    for turn in range(1, TURNS + 1):
        held = (await next(at).grants.issue_and_claim(one.execution_id)).proof
        proof = LeaseProof(held.execution_id, held.lease_id, held.lease_epoch, held.attempt_id)
        if turn < TURNS:
            await next(at).outcomes.delay(proof, for_ms=0)
        else:
            await next(at).outcomes.complete(proof, b"done")
    return one.execution_id


async def follow(stores: Sequence[Engine], over: asyncio.Event) -> list[StoredEvent]:
    """All entries, by a reader that goes on at another store after each page."""
    backends = [engine.deps.store.backend for engine in stores]
    cursor = await backends[0].cursor("oldest")
    found: list[StoredEvent] = []
    looks = 0
    while True:
        # Behind the last commit no transaction is open, so a few looks are enough.
        is_last = over.is_set()
        looks += 1
        backend = backends[looks % len(backends)]
        page = await backend.events(cursor, EventFilter(), 20)
        found += page.events
        cursor = page.cursor
        if not page.events:
            if is_last and looks > 5:
                return found
            looks = looks if is_last else 0
            with closing(backend.notifier().subscribe(LOG_TOPIC)) as log:
                await log.wait(0.02)


async def lives_and_readings(url: str) -> tuple[list[str], list[Lives]]:
    """The executions that lived, and what each reader saw of each."""
    async with engines(url, STORES) as stores:
        shared_postgres().run(SLOW_COMMITS)
        over = asyncio.Event()
        readers = [asyncio.create_task(follow(stores[n:] + stores[:n], over)) for n in range(3)]
        ids = await asyncio.gather(*(live(stores, number) for number in range(LIVES)))
        over.set()
        return ids, [seen(events) for events in await asyncio.gather(*readers)]


def seen(events: list[StoredEvent]) -> Lives:
    found: Lives = defaultdict(list)
    for event in events:
        found[event.entry.execution_id].append((event.entry.lease_epoch, event.entry.kind))
    return found


EXPECTED = [(turn, kind) for turn in range(1, TURNS + 1) for kind in ("acquired", "released")]


async def test_commits_out_of_order_lose_and_reorder_nothing(url: str) -> None:
    ids, readings = await lives_and_readings(url)
    for found in readings:
        assert found == dict.fromkeys(ids, EXPECTED)


async def test_without_a_horizon_readers_lose_entries(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above can fail: it does when readers take every entry they see for the next."""
    monkeypatch.setattr(Horizon, "advance", lambda _, number, oldest, next_one: number)
    for _ in range(5):
        ids, readings = await lives_and_readings(url)
        if any(found != dict.fromkeys(ids, EXPECTED) for found in readings):
            return
        shared_postgres().run(f"TRUNCATE {SCHEMA}.log")
    pytest.fail("nothing was lost")


# ---- numbers that nobody sees


async def test_numbers_that_were_rolled_back_are_not_missed(url: str) -> None:
    async with engines(url, 1) as (engine,):
        start = await cursor_of(engine)
        burn_numbers()
        await one_more(engine)
        page = await read_from(engine, start)
        assert (len(page.events), page.missed) == (1, False)


async def test_a_reader_that_has_seen_all_misses_nothing_of_a_trimmed_log(url: str) -> None:
    async with engines(url, 2) as (engine, other):
        start = await cursor_of(engine)
        for _ in range(3):
            await one_more(engine)
        seen_all = (await read_from(engine, start)).cursor
        await asyncio.gather(*(trim(one) for one in (engine, other) for _ in range(3)))
        burn_numbers()
        last = await one_more(engine)
        for cursor, missed in ((seen_all, False), (start, True), (await cursor_of(engine), False)):
            page = await read_from(engine, cursor)
            assert [one.entry.execution_id for one in page.events] == [last]
            assert page.missed is missed
        assert shared_postgres().run(f"SELECT count(*) FROM {SCHEMA}.log") == [(2,)]


async def cursor_of(engine: Engine) -> bytes:
    return await engine.deps.store.backend.cursor("oldest")


async def one_more(engine: Engine) -> str:
    """Make an entry of one more execution."""
    submitted = await engine.executions.create(Submission(kind="one"))
    await engine.grants.issue_and_claim(submitted.execution_id)
    return submitted.execution_id


async def read_from(engine: Engine, cursor: bytes) -> EventPage:
    """All entries behind the cursor, once nothing holds them back."""
    backend = engine.deps.store.backend
    while not (page := await backend.events(cursor, EventFilter(), 10)).events:
        with closing(backend.notifier().subscribe(LOG_TOPIC)) as log:
            await log.wait(0.05)
    return page


async def trim(engine: Engine) -> None:
    await engine.deps.store.backend.purge(1, log=LogLimits(keep_ms=1_000_000, keep=0))


def burn_numbers() -> None:
    shared_postgres().run(f"SELECT nextval('{SCHEMA}.log_number') FROM generate_series(1, 5)")


# ---- a transaction of somebody else


async def test_a_foreign_transaction_delays_no_claim_result_or_tail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is open all the time: nobody looks by himself, so everybody is told although it is."""
    for module in (claims, waits, tails):
        monkeypatch.setattr(module, "SAFETY_NET_S", 600.0)
    url = url_of("postgres", tmp_path)
    async with engines(url, 2) as (one, other), asyncio.timeout(SOON_S):
        with psycopg.connect(shared_postgres().address) as foreign:
            foreign.execute("CREATE TABLE IF NOT EXISTS foreign_work (n int)")
            foreign.execute("INSERT INTO foreign_work VALUES (1)")
            order = ClaimOrder(
                worker_id="w", worker_instance_id="w", lanes=("default",), wait_ms=10_000
            )
            waiting = asyncio.create_task(one.claims.claim(order))
            submitted = await other.executions.create(Submission(kind="k"))
            (claimed,) = await waiting
            ended = asyncio.create_task(other.waits.until(submitted.execution_id, None))
            asked = Tail(block_ms=30_000)
            tail = asyncio.create_task(other.streams.tail_stream(claimed.execution_id, 0, asked))
            await one.streams.append(claimed.proof, 0, [frame(b"frame")])
            (seen_frame,) = (await tail).frames
            assert seen_frame.frame.payload == b"frame"
            await one.outcomes.complete(claimed.proof, b"done")
            assert (await ended).record.state == "completed"
            await assert_log_waits(one)
            foreign.rollback()
        await assert_log_is_read(one)


async def assert_log_waits(engine: Engine) -> None:
    backend = engine.deps.store.backend
    with closing(backend.notifier().subscribe(LOG_TOPIC)) as log:
        for _ in range(3):
            page = await backend.events(await backend.cursor("oldest"), EventFilter(), 10)
            assert page.events == ()
            assert await log.wait(SOON_S)
    assert backend.counters().log_lag_s > 0


async def assert_log_is_read(engine: Engine) -> None:
    backend = engine.deps.store.backend
    with closing(backend.notifier().subscribe(LOG_TOPIC)) as log:
        cursor = await backend.cursor("oldest")
        while not (await backend.events(cursor, EventFilter(), 10)).events:
            assert await log.wait(SOON_S)
    assert backend.counters().log_lag_s == 0
