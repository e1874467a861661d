"""Schedules: every time of one submits one execution, whoever looks and whatever breaks."""

import asyncio
from datetime import datetime
from typing import Any, Final

import pytest

from flowfabric.backend.base import Backend
from flowfabric.backend.types import ConfigPut, Filter, ListRequest
from flowfabric.config import DutyFilter
from flowfabric.core.record import Record
from flowfabric.core.schedules import Schedule, document_name, read_schedule
from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine import Engine, engine_on
from flowfabric.errors import InvalidInput, NotFound, PayloadTooLarge
from flowfabric.operations.executions import Submission, Submitted
from flowfabric.operations.schedules import Backfill, NewSchedule, ScheduleInfo, Schedules
from tests.clock import VirtualClock
from tests.conformance.driver import Driver, refused
from tests.conformance.dying import Died, Dying
from tests.proofs import proves
from tests.stores import ROTATING

SECOND: Final = 1_000
HOUR: Final = 3_600_000
DAY: Final = 24 * HOUR


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


async def put(driver: Driver, name: str = "tick", **fields: Any) -> ScheduleInfo:
    order = {"kind": "work"} | fields
    if not {"cron", "every_ms"} & set(order):
        order["every_ms"] = HOUR
    return await driver.engine.schedules.put(name, NewSchedule(**order))


async def stored(driver: Driver, name: str = "tick", namespace: str = "default") -> Schedule:
    document = document_name(namespace, name)
    (found,) = await driver.engine.deps.store.backend.config_get([document])
    assert found is not None
    return read_schedule(found.name, found.body)


async def backfill(driver: Driver, first: int, last: int) -> list[str]:
    span = Backfill(first=first, last=last)
    return (await driver.engine.schedules.backfill("tick", span)).execution_ids


async def fired(driver: Driver) -> list[Record]:
    """What was submitted, in the order of the times it stands for."""
    found: list[Record] = []
    cursor = ""
    while True:
        asked = ListRequest(filter=Filter(namespace="default"), cursor=cursor, limit=1_000)
        page = await driver.engine.deps.store.backend.search(asked)
        found += page.records
        cursor = page.next_cursor
        if not cursor:
            return sorted(found, key=lambda record: int(record.tags["scheduled_for"]))


async def times(driver: Driver) -> list[int]:
    return [int(record.tags["scheduled_for"]) for record in await fired(driver)]


# ---- firing


@proves(Schedules.describe_schedule)
async def test_a_due_schedule_submits_what_it_was_given(driver: Driver) -> None:
    start = driver.clock()
    made = await put(
        driver,
        lane="gpu",
        payload=b"input",
        payload_encoding="json",
        policy={"max_reclaim_count": 7},
        tags={"app.team": "red"},
        priority=5,
    )
    assert (made.next_at, made.created_at, made.last_execution_id) == (start + HOUR, start, "")
    assert (await driver.pass_time(HOUR - 1)).of("schedules") == 0
    assert (await driver.pass_time(1)).of("schedules") == 1
    (record,) = await fired(driver)
    assert (record.kind, record.lane, record.priority) == ("work", "gpu", 5)
    assert (record.payload_encoding, record.max_reclaim_count) == ("json", 7)
    assert (record.creator, record.idempotency_key) == (
        "schedule:tick",
        f"schedule:tick:{start + HOUR}",
    )
    assert record.tags == {
        "app.team": "red",
        "schedule_id": "tick",
        "scheduled_for": str(start + HOUR),
    }
    claimed = await driver.claim(lanes=("gpu",))
    assert claimed.input == b"input"
    now = await driver.engine.schedules.get("tick")
    assert (now.next_at, now.last_fired_at) == (start + 2 * HOUR, start + HOUR)
    assert now.last_execution_id == record.execution_id


@pytest.mark.parametrize("backend", ROTATING, indirect=True)
async def test_a_year_of_schedules_fires_each_time_once_and_in_order(driver: Driver) -> None:
    clock = driver.clock
    clock.advance(at("2026-01-01T00:00+00:00") - clock())
    await put(driver, "nightly", cron="30 2 * * *", tz="Europe/Berlin")
    await put(driver, "weekly", cron="0 9 * * mon", tz="America/New_York")
    await put(driver, "steady", every_ms=DAY)
    seen: list[tuple[int, str]] = []
    for _ in range(365 * 2):
        before = {record.execution_id for record in await driver_records(driver)}
        await driver.pass_time(DAY // 2)
        news = [one for one in await driver_records(driver) if one.execution_id not in before]
        seen += sorted((int(one.tags["scheduled_for"]), one.tags["schedule_id"]) for one in news)
    assert seen == sorted(set(seen))
    counts = {name: sum(1 for _, own in seen if own == name) for name in ("nightly", "weekly")}
    assert counts == {"nightly": 365, "weekly": 52}
    assert [time for time, own in seen if own == "steady"] == [
        at("2026-01-01T00:00+00:00") + day * DAY for day in range(1, 366)
    ]


async def driver_records(driver: Driver) -> list[Record]:
    asked = ListRequest(filter=Filter(namespace="default"), limit=20)
    return list((await driver.engine.deps.store.backend.search(asked)).records)


async def test_two_sweeps_at_once_fire_each_time_once(driver: Driver) -> None:
    for name in "abc":
        await put(driver, name, every_ms=SECOND, catch_up="all")
    driver.clock.advance(5 * SECOND)
    other = TimerSweep(driver.engine)
    results = await asyncio.gather(driver.sweep(), other.visit(), other.visit())
    assert sum(result.total("error") for result in results) == 0
    assert sum(result.of("schedules") for result in results) == 3
    assert len(await fired(driver)) == 15


@pytest.mark.parametrize("overlap", ["allow", "skip"])
@pytest.mark.parametrize("after", [False, True])
async def test_a_sweep_that_dies_anywhere_is_made_good_by_the_next(
    backend: Backend, clock: VirtualClock, overlap: str, after: bool
) -> None:
    engine = engine_on(backend)
    driver = Driver(engine, clock, TimerSweep(engine))
    await put(driver, every_ms=HOUR, overlap=overlap)
    clock.advance(HOUR)
    for cut in range(20):
        dying = Dying(backend, cut, after=after)
        victim = engine_on(dying.as_backend())
        try:
            await TimerSweep(victim).visit()
        except Died:
            pass
        finally:
            await victim.lanes.close()
            await victim.keys.close()
    await driver.sweep()
    (record,) = await fired(driver)
    schedule = await engine.schedules.get("tick")
    assert (schedule.next_at, schedule.last_execution_id) == (
        clock() + HOUR,
        record.execution_id,
    )
    await engine.close()


async def test_what_a_dead_sweep_submitted_counts_as_the_last_execution(driver: Driver) -> None:
    """It died between submitting and saying so, and the next time came before anybody looked."""
    made = await put(driver, overlap="skip")
    driver.clock.advance(HOUR)
    (submitted,) = await driver.engine.schedules.firings.submit_each(
        await stored(driver), (made.next_at,)
    )
    await driver.pass_time(HOUR)
    assert [record.execution_id for record in await fired(driver)] == [submitted]
    now = await driver.engine.schedules.get("tick")
    assert (now.last_execution_id, now.last_fired_at) == (submitted, made.next_at)
    await driver.pass_time(HOUR)
    assert len(await fired(driver)) == 1


# ---- overlap and catching up


async def test_overlap_may_be_skipped_while_the_last_execution_lives(driver: Driver) -> None:
    await put(driver, overlap="skip")
    start = driver.clock()
    await driver.pass_time(HOUR)
    await driver.pass_time(HOUR)
    assert await times(driver) == [start + HOUR]
    await driver.claim()
    await driver.pass_time(HOUR)
    assert await times(driver) == [start + HOUR]
    held = (await driver.claim()).proof
    await driver.engine.outcomes.complete(held)
    await driver.pass_time(HOUR)
    assert await times(driver) == [start + HOUR, start + 4 * HOUR]


async def test_overlap_is_allowed_unless_it_is_skipped(driver: Driver) -> None:
    await put(driver)
    for _ in range(3):
        await driver.pass_time(HOUR)
    assert len(await fired(driver)) == 3


@pytest.mark.parametrize(
    ("catch_up", "overlap", "expected"),
    [
        ("latest", "allow", [5]),
        ("all", "allow", [1, 2, 3, 4, 5]),
        ("all", "skip", [5]),
        ("none", "allow", []),
    ],
)
async def test_missed_times_are_caught_up_as_asked(
    driver: Driver, catch_up: str, overlap: str, expected: list[int]
) -> None:
    start = driver.clock()
    await put(driver, catch_up=catch_up, overlap=overlap)
    await driver.pass_time(5 * HOUR + HOUR // 2)
    assert await times(driver) == [start + hour * HOUR for hour in expected]
    assert (await driver.engine.schedules.get("tick")).next_at == start + 6 * HOUR


async def test_a_time_met_a_little_late_was_not_missed(driver: Driver) -> None:
    start = driver.clock()
    await put(driver, catch_up="none")
    await driver.pass_time(HOUR + 60 * SECOND)
    assert await times(driver) == [start + HOUR]
    await driver.pass_time(HOUR + SECOND)
    assert await times(driver) == [start + HOUR]


async def test_after_a_long_outage_the_newest_thousand_are_caught_up(driver: Driver) -> None:
    start = driver.clock()
    await put(driver, every_ms=SECOND, catch_up="all")
    await driver.pass_time(5_000 * SECOND)
    met = await times(driver)
    assert met == [start + number * SECOND for number in range(4_001, 5_001)]


# ---- times


async def test_times_lie_between_start_and_end_both_included(driver: Driver) -> None:
    start = driver.clock() + 10 * HOUR
    await put(driver, start_at=start, end_at=start + 2 * HOUR, catch_up="all")
    assert (await driver.engine.schedules.get("tick")).next_at == start
    await driver.pass_time(30 * HOUR)
    assert await times(driver) == [start, start + HOUR, start + 2 * HOUR]
    over = await driver.engine.schedules.get("tick")
    assert (over.next_at, over.last_fired_at) == (0, start + 2 * HOUR)


async def test_a_start_that_is_now_fires_now(driver: Driver) -> None:
    now = driver.clock()
    await put(driver, start_at=now)
    await driver.sweep()
    assert await times(driver) == [now]


@proves(Schedules.put_schedule)
async def test_putting_the_same_again_moves_no_time(driver: Driver) -> None:
    start = driver.clock()
    await put(driver)
    driver.clock.advance(HOUR // 2)
    again = await put(driver, payload=b"new")
    assert (again.next_at, again.created_at) == (start + HOUR, start)
    assert again.changed_at == driver.clock()
    # Not even a time that is due already is lost.
    driver.clock.advance(HOUR)
    await put(driver, payload=b"newer")
    await driver.sweep()
    assert await times(driver) == [start + HOUR]
    assert (await driver.claim()).input == b"newer"


async def test_other_times_begin_anew_and_keep_the_history(driver: Driver) -> None:
    start = driver.clock()
    await put(driver)
    await driver.pass_time(HOUR)
    before = await driver.engine.schedules.get("tick")
    changed = await put(driver, every_ms=2 * HOUR)
    assert changed.next_at == start + 2 * HOUR
    assert changed.last_execution_id == before.last_execution_id != ""


# ---- pause, trigger, backfill, delete


@proves(Schedules.pause_schedule)
async def test_a_paused_schedule_moves_on_and_fires_nothing(driver: Driver) -> None:
    start = driver.clock()
    await put(driver, catch_up="all")
    assert (await driver.engine.schedules.pause("tick")).paused
    await driver.pass_time(3 * HOUR)
    assert (await driver.engine.schedules.get("tick")).next_at == start + 4 * HOUR
    driver.clock.advance(HOUR)
    resumed = await driver.engine.schedules.resume("tick")
    assert (resumed.paused, resumed.next_at) == (False, start + 5 * HOUR)
    await driver.pass_time(HOUR)
    assert await times(driver) == [start + 5 * HOUR]


async def test_a_pause_survives_the_next_put_unless_it_says_otherwise(driver: Driver) -> None:
    start = driver.clock()
    await put(driver, paused=True)
    driver.clock.advance(2 * HOUR)
    assert (await put(driver)).paused
    again = await put(driver, paused=False, catch_up="all")
    assert (again.paused, again.next_at) == (False, start + 3 * HOUR)


@proves(Schedules.resume_schedule)
async def test_resuming_what_is_not_paused_loses_no_time(driver: Driver) -> None:
    start = driver.clock()
    await put(driver)
    driver.clock.advance(HOUR)
    await driver.engine.schedules.resume("tick")
    await driver.sweep()
    assert await times(driver) == [start + HOUR]


@proves(Schedules.trigger_schedule)
async def test_a_trigger_submits_now_and_leaves_the_times_alone(driver: Driver) -> None:
    made = await put(driver, paused=True, overlap="skip")
    first = (await driver.engine.schedules.trigger("tick")).execution_id
    second = (await driver.engine.schedules.trigger("tick")).execution_id
    assert first != second
    now = await driver.engine.schedules.get("tick")
    assert (now.next_at, now.last_execution_id) == (made.next_at, second)
    assert now.last_fired_at == driver.clock()


async def test_a_trigger_of_what_is_deleted_meanwhile_still_submits(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules = driver.engine.schedules
    await put(driver)
    create = driver.engine.executions.create

    async def created_and_deleted(submission: Submission) -> Submitted:
        submitted = await create(submission)
        await schedules.delete("tick")
        return submitted

    monkeypatch.setattr(driver.engine.executions, "create", created_and_deleted)
    own = (await schedules.trigger("tick")).execution_id
    assert [record.execution_id for record in await fired(driver)] == [own]
    with refused(NotFound):
        await schedules.get("tick")


@proves(Schedules.backfill_schedule)
async def test_a_backfill_submits_each_time_once(driver: Driver) -> None:
    await put(driver, cron="0 * * * *")
    noon = at("2023-11-01T12:00+00:00")
    found = await backfill(driver, noon, noon + 3 * HOUR)
    assert await times(driver) == [noon + hour * HOUR for hour in range(4)]
    assert [record.execution_id for record in await fired(driver)] == found
    # A repeat finds them, even when nobody remembers their keys.
    driver.clock.advance(3 * DAY)
    assert await backfill(driver, noon - HOUR, noon) == [
        *(await backfill(driver, noon - HOUR, noon - 1)),
        found[0],
    ]
    assert len(await fired(driver)) == 5


async def test_a_backfill_finds_what_was_fired_in_its_time(driver: Driver) -> None:
    start = driver.clock()
    await put(driver)
    await driver.pass_time(HOUR)
    (record,) = await fired(driver)
    again = await backfill(driver, start + 1, start + HOUR)
    assert again == [record.execution_id]
    assert len(await fired(driver)) == 1


async def test_a_backfill_has_a_thousand_times_at_most(driver: Driver) -> None:
    await put(driver, every_ms=SECOND)
    now = driver.clock()
    detail = "from, to: more than 1000 times lie between them"
    with refused(InvalidInput, detail):
        await backfill(driver, now - 1_000 * SECOND, now)
    with refused(InvalidInput):
        await backfill(driver, now, now - 1)
    assert await fired(driver) == []
    many = await backfill(driver, now - 999 * SECOND, now)
    assert len(set(many)) == 1_000


@proves(Schedules.delete_schedule)
async def test_a_deleted_schedule_fires_no_more_and_may_come_back(driver: Driver) -> None:
    await put(driver)
    await driver.engine.schedules.delete("tick")
    assert (await driver.pass_time(HOUR)).of("schedules") == 0
    with refused(NotFound, "schedule tick"):
        await driver.engine.schedules.get("tick")
    start = driver.clock()
    await put(driver)
    await driver.pass_time(HOUR)
    assert await times(driver) == [start + HOUR]


async def test_a_sweep_never_moves_a_schedule_that_was_made_anew(driver: Driver) -> None:
    await put(driver)
    driver.clock.advance(HOUR)
    (document,) = (await driver.engine.deps.store.backend.due(10)).config
    seen = read_schedule(document.name, document.body)
    await driver.engine.schedules.delete("tick")
    made = await put(driver, every_ms=DAY)
    moved = await driver.engine.schedules.firings.fire_due([(document, seen)], driver.clock())
    assert moved == [False]
    assert await driver.engine.schedules.get("tick") == made


@pytest.mark.parametrize("act", ["get", "pause", "resume", "delete", "trigger"])
async def test_what_is_not_there_cannot_be_acted_on(driver: Driver, act: str) -> None:
    with refused(NotFound, "schedule nobody"):
        await getattr(driver.engine.schedules, act)("nobody")
    with refused(NotFound, "schedule nobody"):
        await driver.engine.schedules.backfill("nobody", Backfill(first=0, last=1))
    with refused(InvalidInput):
        await getattr(driver.engine.schedules, act)("no/body")


# ---- listing


@proves(Schedules.list_schedules)
async def test_schedules_are_listed_by_id_and_namespace(driver: Driver) -> None:
    for number in range(6):
        await put(driver, f"s{number}", namespace="other" if number % 3 else "default")
    await driver.engine.schedules.delete("s1", "other")
    schedules = driver.engine.schedules
    names, cursor = [], ""
    while True:
        page = await schedules.list_schedules(cursor=cursor, limit=2)
        names += [one.schedule_id for one in page.items]
        cursor = page.next_cursor
        if not cursor:
            break
    assert names == ["s0", "s3", "s2", "s4", "s5"]
    other = await schedules.list_schedules("other")
    assert [one.schedule_id for one in other.items] == ["s2", "s4", "s5"]
    assert other.next_cursor == ""
    with refused(InvalidInput):
        await schedules.list_schedules(limit=1_001)


# ---- refusals and faults


BAD: list[tuple[dict[str, Any], str]] = [
    ({"kind": ""}, "execution_kind: empty"),
    ({"every_ms": 1_000, "cron": "* * * * *"}, "every_ms, cron: expected exactly one of them"),
    ({"every_ms": None}, "every_ms, cron: expected exactly one of them"),
    ({"every_ms": 99}, "every_ms: expected 100..3162240000000, got 99"),
    ({"every_ms": 1.5}, "every_ms: expected an integer, got float"),
    ({"cron": "0 0 30 2 *"}, "cron, start_at, end_at: no time ever comes"),
    ({"cron": "x * * * *"}, "cron: minute: expected 0-59, got 'x'"),
    (
        {"tz": "../../etc/passwd"},
        "tz: expected an IANA time zone like Europe/Berlin, got '../../etc/passwd'",
    ),
    ({"start_at": -1}, "start_at: expected 0..140737488355328, got -1"),
    ({"start_at": 5, "end_at": 4}, "end_at: expected an instant that is not before start_at"),
    ({"overlap": "maybe"}, "overlap: expected one of allow, skip"),
    ({"catch_up": "some"}, "catch_up: expected one of latest, all, none"),
    ({"paused": 1}, "paused: expected one of false, true"),
    ({"lane": "a,b"}, "lane_id: non-printable or ',' at byte 1"),
    ({"namespace": "a b"}, "namespace: contains whitespace or control characters"),
]


@pytest.mark.parametrize(("fields", "detail"), BAD, ids=lambda value: str(value)[:40])
async def test_a_bad_schedule_is_refused_and_changes_nothing(
    driver: Driver, fields: dict[str, Any], detail: str
) -> None:
    made = await put(driver)
    with refused(InvalidInput, detail):
        await put(driver, **fields)
    assert await driver.engine.schedules.get("tick") == made


@pytest.mark.parametrize("name", ["", "a/b", "-a", "a b", "ä", "a" * 129, "..", "a\n"])
async def test_a_bad_id_is_refused(driver: Driver, name: str) -> None:
    with refused(InvalidInput):
        await put(driver, name)


async def test_a_schedule_is_a_small_document(driver: Driver) -> None:
    await put(driver, payload=bytes(64 * 1024))
    with refused(PayloadTooLarge):
        await put(driver, payload=bytes(64 * 1024 + 1))


async def test_two_namespaces_use_the_same_id_without_touching_each_other(driver: Driver) -> None:
    schedules = driver.engine.schedules
    own = await put(driver)
    other = await put(driver, namespace="other", lane="theirs", every_ms=2 * HOUR)
    assert await schedules.get("tick") == own
    assert await schedules.get("tick", "other") == other
    await schedules.pause("tick", "other")
    assert not (await schedules.get("tick")).paused
    await schedules.resume("tick", "other")
    assert (await driver.pass_time(2 * HOUR)).of("schedules") == 2
    first = (await schedules.get("tick")).last_execution_id
    second = (await schedules.get("tick", "other")).last_execution_id
    assert "" != first != second != ""
    records = [(await driver.engine.deps.record(one))[0] for one in (first, second)]
    assert [one.namespace for one in records] == ["default", "other"]
    assert records[0].tags["scheduled_for"] == records[1].tags["scheduled_for"]
    triggered = (await schedules.trigger("tick", "other")).execution_id
    assert (await schedules.get("tick")).last_execution_id == first
    assert (await driver.engine.deps.record(triggered))[0].namespace == "other"
    await schedules.delete("tick", "other")
    with refused(NotFound, "schedule tick"):
        await schedules.get("tick", "other")
    assert (await schedules.get("tick")).last_execution_id == first


async def test_whoever_is_limited_lists_only_the_namespaces_it_may_see(driver: Driver) -> None:
    # What the caller may see is filled in by the server.
    listing: Any = driver.engine.schedules.list_schedules
    for namespace in ("a", "a/b", "b", "c"):
        for name in ("x", "y"):
            await put(driver, name, namespace=namespace)
    for visible in ({"a", "c"}, {"b"}, {"a/b", "nobody"}, set[str]()):
        for limit in (1, 2, 3, 10):
            seen, cursor = [], ""
            while True:
                page = await listing(cursor=cursor, limit=limit, visible=frozenset(visible))
                seen += [(one.namespace, one.schedule_id) for one in page.items]
                cursor = page.next_cursor
                if not cursor:
                    break
                assert tuple(cursor.split(":")) == seen[-1]
            found = visible - {"nobody"}
            assert seen == [(space, name) for space in sorted(found) for name in ("x", "y")]
    page = await listing("a", visible=frozenset({"a"}))
    assert [(one.namespace, one.schedule_id) for one in page.items] == [("a", "x"), ("a", "y")]


async def test_an_unreadable_schedule_stops_no_other_and_stays(
    driver: Driver, backend: Backend
) -> None:
    await backend.config_put([ConfigPut("schedule/broken", 0, b"{", driver.clock())])
    await put(driver)
    result = await driver.pass_time(HOUR)
    assert (result.of("schedules"), result.of("schedules", "error")) == (1, 1)
    assert (await backend.config_get(["schedule/broken"]))[0] is not None


async def test_a_lane_that_takes_no_work_is_tried_again(driver: Driver) -> None:
    start = driver.clock()
    await put(driver)
    await driver.engine.lanes.configure("default", "default", state="disabled")
    assert (await driver.pass_time(HOUR)).of("schedules", "error") == 1
    await driver.engine.lanes.configure("default", "default", state="active")
    assert (await driver.sweep()).of("schedules") == 1
    assert await times(driver) == [start + HOUR]


async def test_a_filter_leaves_the_schedules_of_others_alone(
    driver: Driver, engine: Engine
) -> None:
    await put(driver, namespace="other")
    driver.clock.advance(HOUR)
    mine = TimerSweep(engine, DutyFilter(namespace="default"))
    assert (await mine.visit()).of("schedules", "skipped") == 1
    assert (await driver.sweep()).of("schedules") == 1


async def test_the_work_of_a_time_is_spread_over_the_jitter(driver: Driver) -> None:
    made = await put(driver, every_ms=60_000, jitter_ms=30_000)
    assert made.jitter_ms == 30_000
    late = []
    for _ in range(8):
        await driver.pass_time(60_000)
        newest = (await fired(driver))[-1]
        start = newest.wake_at or driver.clock()
        late.append(start - int(newest.tags["scheduled_for"]))
    assert all(0 <= one <= 30_000 for one in late)
    assert len(set(late)) > 4
    with refused(InvalidInput):
        await put(driver, every_ms=60_000, jitter_ms=86_400_001)
