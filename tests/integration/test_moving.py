"""A deployment moves from store to store and is the same everywhere."""

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from flowfabric.app import abandon_move, migrate_store, movable_of, verified
from flowfabric.backend.moving import Marker, Move, MoveOrder, Progress
from flowfabric.backend.reference.moving import LEFT, MOVED
from flowfabric.backend.reference.tables import RECORDS
from flowfabric.backend.sql.layout import LAYOUTS
from flowfabric.backend.types import EventFilter
from flowfabric.backend.valkey.keys import KINDS
from flowfabric.backend.valkey.moving import ValkeyMovable, reading
from flowfabric.config import Settings
from flowfabric.core.ids import PartitionCounts
from flowfabric.errors import InvalidInput, PartitionMismatch, Unavailable
from flowfabric.operations.executions import Submission
from tests.clock import VirtualClock
from tests.conformance.driver import Driver
from tests.conformance.streaming import SOON_S
from tests.integration.deployment import (
    Deployment,
    EmptyStores,
    looked_at,
    move,
    no_report,
    side_of,
    stored_rows,
)
from tests.rotation import on_stores

REPOSITORY = Path(__file__).resolve().parents[2]
ON_EVERY_STORE = pytest.mark.parametrize(
    "store", on_stores(["sqlite", "postgres", "valkey"], ["valkey-cluster"])
)
PAIRS = [("sqlite", "postgres"), ("postgres", "valkey"), ("valkey", "sqlite")]


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[EmptyStores]:
    stores = EmptyStores(tmp_path)
    yield stores
    stores.drop()


async def filled(settings: Settings, n: int = 5) -> None:
    """A store with a few executions, one of them leased for a moment."""
    side = await side_of(settings)
    for number in range(n):
        policy = {"dedup_window_ms": 86_400_000}
        order = Submission(kind="work", input=b"body", idempotency_key=f"{number}", policy=policy)
        await side.engine.executions.create(order)
    await side.close()


async def submit(settings: Settings) -> str:
    side = await side_of(settings)
    try:
        return (await side.engine.executions.create(Submission(kind="late"))).execution_id
    finally:
        await side.close()


# ---- everything


async def test_a_deployment_is_the_same_after_every_hop_of_a_ring(
    clock: VirtualClock, empty: EmptyStores
) -> None:
    deployment, settings = Deployment(), empty("sqlite")
    side = await side_of(settings, clock)
    await deployment.fill(side, clock)
    clock.advance(3_700_000)
    expected = await deployment.shown(side)
    await side.close()
    rows = await stored_rows(settings, clock)
    assert {name for name, _, _ in rows} == {table.name for table in MOVED}
    for name in ("postgres", "valkey", "valkey-cluster", "sqlite"):
        target = empty(name)
        await move(settings, target, clock)
        assert await verified(settings) == []
        assert await verified(target) == []
        assert await stored_rows(target, clock) == rows
        side = await side_of(target, clock)
        assert await deployment.shown(side) == expected
        await side.close()
        settings = target


async def test_work_goes_on_behind_the_move(clock: VirtualClock, empty: EmptyStores) -> None:
    """Leases, idempotency keys and timers are what they were: whoever held one still does."""
    source, target = empty("sqlite"), empty("valkey")
    side = await side_of(source, clock)
    driver = Driver(side.engine, clock, side.sweep)
    held = (await driver.started(policy={"retry_policy": {"max_retries": 1}})).proof
    await driver.submit(delay_until=clock() + 9_000)
    key = {"idempotency_key": "k", "policy": {"dedup_window_ms": 86_400_000}}
    keyed = await driver.submit(**key)
    await side.close()
    clock.advance(31_000)
    await move(source, target, clock)
    side = await side_of(target, clock)
    driver = Driver(side.engine, clock, side.sweep)
    assert await driver.submit(**key) == keyed
    await driver.sweep()
    assert (await driver.record(held.execution_id)).state == "lost"
    claimed = await driver.claim_all(n=9)
    assert len(claimed) == 3
    for one in claimed:
        await side.engine.outcomes.complete(one.proof, b"done")
    assert await side.backend.verify() == []
    await side.close()


def test_every_table_moves_or_is_left_on_purpose() -> None:
    assert {*MOVED, *LEFT} == {RECORDS, *LAYOUTS}
    assert not {*MOVED} & {*LEFT}


def test_every_kind_of_key_moves_or_is_derived() -> None:
    assert {*reading.MOVED, *reading.DERIVED} == {*KINDS.values()}
    assert not reading.MOVED & reading.DERIVED


async def test_every_table_is_loaded_into_valkey(empty: EmptyStores) -> None:
    store = movable_of(empty("valkey"), is_new=True)
    assert isinstance(store, ValkeyMovable)
    assert store.loaded == {*MOVED}
    await store.close()


@pytest.mark.parametrize(("source", "target"), [("valkey", "sqlite"), ("sqlite", "postgres")])
async def test_a_cursor_of_the_old_event_log_is_refused(
    source: str, target: str, empty: EmptyStores
) -> None:
    old, new = empty(source), empty(target)
    await filled(old)
    side = await side_of(old)
    cursor = (await side.backend.events(side.cursor, EventFilter(), 3)).cursor
    await side.close()
    await move(old, new)
    side = await side_of(new)
    with pytest.raises(InvalidInput, match="cursor"):
        await side.backend.events(cursor, EventFilter(), 3)
    await side.close()


# ---- killed


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("kept", ["move", "keep"])
async def test_a_move_that_is_killed_again_and_again_ends(
    source: str, target: str, kept: str, empty: EmptyStores
) -> None:
    """`kill -9` at writes all over the move; each run goes on, and what comes out is whole."""
    old, luck = empty.url(source), Random(f"{source}{kept}")
    settings = empty.settings(old)
    await filled(settings, 60)
    rows, new, runs = await stored_rows(settings), empty.url(target), 0
    # The first writes are the marks of both stores: each of them is the last of some run.
    deaths = [*range(1, 8), *(luck.randint(20, 400) for _ in range(5)), 10**9]
    for writes in deaths:
        runs += 1
        code = await _moved(old, new, writes, kept)
        if code == 0:
            break
        assert code == -9
    assert runs > 7
    there = empty.settings(new)
    assert await stored_rows(there) == rows
    assert await verified(settings) == []
    assert await verified(there) == []
    await submit(there)
    if kept == "keep":
        await submit(settings)
    else:
        with pytest.raises(Unavailable, match="was moved to"):
            await submit(settings)


async def _moved(source: str, target: str, writes: int, kept: str) -> int:
    module = "tests.integration.mover"
    words = [sys.executable, "-m", module, source, target, str(writes), kept]
    process = await asyncio.create_subprocess_exec(*words, cwd=REPOSITORY)
    return await process.wait()


# ---- who else is there


@ON_EVERY_STORE
async def test_a_forgotten_process_cannot_write_any_more(store: str, empty: EmptyStores) -> None:
    url = empty.url(store)
    settings, target = empty.settings(url), empty("sqlite")
    await filled(settings)
    async with _forgotten(url) as tell:
        assert await tell() == "submitted"
        await move(settings, target)
        said = await tell()
    assert said.startswith("Unavailable")
    assert "moved to sqlite" in said
    assert [row for row in await stored_rows(target) if row[0] == "record"] == [
        row for row in await stored_rows(settings) if row[0] == "record"
    ]


@asynccontextmanager
async def _forgotten(url: str) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    pipe = asyncio.subprocess.PIPE
    words = [sys.executable, "-m", "tests.integration.forgotten", url]
    process = await asyncio.create_subprocess_exec(*words, cwd=REPOSITORY, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    writer, reader = process.stdin, process.stdout

    async def heard() -> str:
        async with asyncio.timeout(SOON_S):
            return (await reader.readline()).decode().strip()

    async def tell() -> str:
        writer.write(b"\n")
        return await heard()

    try:
        assert await heard() == "ready"
        yield tell
    finally:
        process.kill()
        await process.wait()


@ON_EVERY_STORE
async def test_the_source_is_refused_afterwards(store: str, empty: EmptyStores) -> None:
    source, target = empty(store), empty("sqlite")
    await filled(source)
    await move(source, target)
    text = f"{source.store.scheme}: this store was moved to sqlite: open that one"
    with pytest.raises(Unavailable, match=text):
        await submit(source)
    with pytest.raises(Unavailable, match=text):
        await move(source, empty("sqlite"))


@ON_EVERY_STORE
async def test_a_copy_leaves_the_source_as_it_was(store: str, empty: EmptyStores) -> None:
    source, target = empty(store), empty("sqlite")
    await filled(source)
    rows = await stored_rows(source)
    await move(source, target, keeps=True)
    assert await stored_rows(source) == rows == await stored_rows(target)
    assert await verified(source) == [] == await verified(target)
    assert await submit(source)
    assert await submit(target)


@ON_EVERY_STORE
async def test_both_stores_are_refused_until_the_move_is_over(
    store: str, empty: EmptyStores
) -> None:
    source, target = empty("sqlite"), empty(store)
    await filled(source)
    await _interrupted(source, target)
    with pytest.raises(Unavailable, match="this store is being moved to"):
        await submit(source)
    with pytest.raises(Unavailable, match="is the unfinished target of a move from sqlite"):
        await submit(target)
    other = empty("sqlite")
    await filled(other)
    with pytest.raises(Unavailable, match="unfinished target of a move"):
        await move(other, target)
    await move(source, target)
    assert await submit(target)


@ON_EVERY_STORE
async def test_a_move_that_was_given_up_opens_its_source_again(
    store: str, empty: EmptyStores
) -> None:
    source, target = empty(store), empty("sqlite")
    await filled(source)
    await _interrupted(source, target)
    await abandon_move(source)
    assert await submit(source)
    assert await verified(source) == []
    with pytest.raises(Unavailable, match="unfinished target"):
        await submit(target)


class _Interrupted(Exception):
    pass


async def _interrupted(source: Settings, target: Settings) -> None:
    def stop(progress: Progress) -> None:
        if progress.stage == "comparing":
            raise _Interrupted

    with pytest.raises(_Interrupted):
        await move(source, target, report=stop)


@ON_EVERY_STORE
async def test_of_two_processes_that_move_the_same_the_later_one_goes_on(
    store: str, empty: EmptyStores
) -> None:
    """The earlier one must not load a page into a target that is open already."""
    source, target = empty("sqlite"), empty(store)
    await filled(source)
    async with looked_at(source) as ours, looked_at(target, is_new=True) as theirs:
        stopped: list[Marker] = []

        async def load(rows: Sequence[Any], seen: Marker | None, marker: Marker) -> None:
            await theirs_load(rows, seen, marker)
            stopped.append(marker)
            if marker.cursor:
                raise _Interrupted

        theirs_load = theirs.load
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(theirs, "load", load)
            with pytest.raises(_Interrupted):
                await Move(ours, theirs, no_report).run(MoveOrder(wait_s=0))
        await Move(ours, theirs, no_report).run(MoveOrder(wait_s=0))
        page = await ours.page(stopped[-1].cursor)
        with pytest.raises(Unavailable, match="another process works on this move"):
            await theirs.load(page.rows, stopped[-1], stopped[-1])
        with pytest.raises(Unavailable, match="another process works on this move"):
            await ours.seal(None, stopped[-1])
    assert await verified(target) == []


# ---- refused


async def test_a_target_that_holds_work_is_refused_and_nothing_is_closed(
    empty: EmptyStores,
) -> None:
    for store in ("sqlite", "postgres", "valkey"):
        source, target = empty("sqlite"), empty(store)
        await filled(source)
        await filled(target)
        with pytest.raises(InvalidInput, match="is not empty"):
            await move(source, target)
        assert await submit(source)


async def test_a_target_with_other_partition_counts_is_refused(empty: EmptyStores) -> None:
    url = empty.url("sqlite")
    source, target = empty("sqlite"), empty.settings(url, PartitionCounts(flow=8))
    await filled(source)
    await migrate_store(target)
    with pytest.raises(PartitionMismatch, match="other partition counts"):
        await move(source, target)
    assert await submit(source)


async def test_a_store_without_a_deployment_is_refused(empty: EmptyStores) -> None:
    target = empty("sqlite")
    with pytest.raises(InvalidInput, match="there is no such file"):
        await move(empty("sqlite"), target)
    for store in ("postgres", "valkey"):
        with pytest.raises(InvalidInput, match="holds no deployment"):
            await move(empty(store), target)


async def test_a_store_is_not_moved_to_itself(empty: EmptyStores) -> None:
    source = empty("valkey")
    await filled(source)
    with pytest.raises(InvalidInput, match="is both the source and the target"):
        await move(source, source)


@ON_EVERY_STORE
async def test_leases_are_waited_for(store: str, clock: VirtualClock, empty: EmptyStores) -> None:
    source, target = empty(store), empty("sqlite")
    side = await side_of(source, clock)
    driver = Driver(side.engine, clock, side.sweep)
    await driver.started()
    await driver.started()
    await side.close()
    with pytest.raises(Unavailable, match="workers hold 2 executions: stop the workers"):
        await move(source, target, clock)
    side = await side_of(source, clock)
    await side.close()
    stages: list[Progress] = []

    def report(progress: Progress) -> None:
        stages.append(progress)
        clock.advance(60_000)

    await move(source, target, clock, wait_s=60.0, report=report)
    assert stages[0] == Progress("waiting", 2, 0)


async def test_a_difference_is_found_and_everything_copied_again(empty: EmptyStores) -> None:
    """Nothing may write; whatever does all the same is noticed before the source is given up."""
    source, target = empty("postgres"), empty("sqlite")
    await filled(source)
    rows = await stored_rows(source)

    def meddle(progress: Progress) -> None:
        if progress.stage == "comparing" and not progress.done:
            with closing(sqlite3.connect(target.store.path)) as connection, connection:
                connection.execute("DELETE FROM blob")

    with pytest.raises(Unavailable, match=r"the stores differ in blob \(5 and 0 rows\)"):
        await move(source, target, report=meddle)
    await move(source, target)
    assert await stored_rows(target) == rows
