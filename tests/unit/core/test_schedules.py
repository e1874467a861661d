"""Decisions about schedules: whenever somebody looks, every time comes up once."""

from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.schedules import (
    LATE_MS,
    MOST_TIMES,
    Schedule,
    between,
    fire,
    fire_uuid,
    placed,
    read_schedule,
    resumed,
    time_after,
    time_until,
    write_schedule,
)
from flowfabric.errors import Corruption, InvalidInput

BERLIN = ZoneInfo("Europe/Berlin")
# Two days before clocks go back.
START = 1_792_713_600_000
HOUR = 3_600_000


SECRET = b"s" * 32


def a_schedule(**fields: Any) -> Schedule:
    timing = {} if "cron" in fields else {"every_ms": HOUR}
    asked = Schedule(schedule_id="s", kind="k", **(timing | fields))
    return placed(asked, None, BERLIN, START)


timings: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.builds(dict, every_ms=st.integers(60_000, 5 * HOUR)),
    st.builds(dict, cron=st.sampled_from(["*/20 * * * *", "30 2 * * *", "0 */3 * * sat,sun"])),
)
# How long nobody looks, again and again.
pauses = st.lists(st.integers(1, 30 * HOUR), min_size=1, max_size=8)


def looks(schedule: Schedule, gaps: list[int]) -> tuple[list[int], Schedule, int]:
    """All times that were fired for at these looks, the schedule after them, and the last one."""
    found: list[int] = []
    now = START
    for gap in gaps:
        now += gap
        if 0 < schedule.next_at <= now:
            firing = fire(schedule, BERLIN, now)
            found += firing.times
            schedule = firing.moved
    return found, schedule, now


@given(timing=timings, gaps=pauses)
def test_catching_up_all_meets_every_time_once_and_in_order(
    timing: dict[str, Any], gaps: list[int]
) -> None:
    schedule = a_schedule(catch_up="all", **timing)
    found, after, now = looks(schedule, gaps)
    assert found == sorted(set(found))
    if len(found) < MOST_TIMES:
        assert tuple(found) == between(schedule, BERLIN, START + 1, now)
    assert after.next_at == time_after(schedule, BERLIN, now)


@given(timing=timings, gaps=pauses, overlap=st.sampled_from(["allow", "skip"]))
def test_catching_up_the_latest_fires_once_a_look_for_the_last_time(
    timing: dict[str, Any], gaps: list[int], overlap: Any
) -> None:
    schedule = a_schedule(catch_up="latest", overlap=overlap, **timing)
    found, after, now = looks(schedule, gaps)
    assert found == sorted(set(found))
    assert len(found) <= len(gaps)
    assert all(time_until(schedule, BERLIN, time) == time for time in found)
    assert after.next_at > now


@given(timing=timings, gaps=pauses)
def test_without_catching_up_nothing_late_is_fired_for(
    timing: dict[str, Any], gaps: list[int]
) -> None:
    schedule, now = a_schedule(catch_up="none", **timing), START
    for gap in gaps:
        now += gap
        if 0 < schedule.next_at <= now:
            firing = fire(schedule, BERLIN, now)
            assert all(now - LATE_MS <= time <= now for time in firing.times)
            schedule = firing.moved


@given(timing=timings, gaps=pauses)
def test_a_paused_schedule_only_moves(timing: dict[str, Any], gaps: list[int]) -> None:
    found, after, now = looks(a_schedule(paused=True, **timing), gaps)
    assert found == []
    again = resumed(after, BERLIN, now)
    assert not again.paused
    assert again.next_at > now


def test_resuming_drops_the_times_of_the_pause() -> None:
    paused = a_schedule(paused=True)
    assert resumed(paused, BERLIN, START + 5 * HOUR).next_at == START + 6 * HOUR


def test_the_times_end_with_the_schedule() -> None:
    schedule = a_schedule(end_at=START + 2 * HOUR)
    firing = fire(schedule, BERLIN, START + 9 * HOUR)
    assert (firing.times, firing.moved.next_at) == ((START + 2 * HOUR,), 0)


def test_between_has_a_bound() -> None:
    schedule = a_schedule(every_ms=100)
    assert len(between(schedule, BERLIN, START + 1, START + 100_000)) == MOST_TIMES
    with pytest.raises(InvalidInput):
        between(schedule, BERLIN, START, START + 100_000)


def test_a_time_has_one_id_in_its_namespace() -> None:
    ids = {
        fire_uuid(SECRET, space, name, time) for space in "ab" for name in "xy" for time in (1, 2)
    }
    assert len(ids) == 8
    assert fire_uuid(SECRET, "a", "x", 1) == fire_uuid(SECRET, "a", "x", 1)
    assert fire_uuid(bytes(32), "a", "x", 1) not in ids


def test_a_schedule_is_written_and_read_again() -> None:
    schedule = a_schedule(payload=bytes(range(256)), tags={"app.a": "b"}, priority=3)
    assert read_schedule("schedule/s", write_schedule(schedule)) == schedule
    newer = msgspec.json.decode(write_schedule(schedule)) | {"colour": "red"}
    assert read_schedule("schedule/s", msgspec.json.encode(newer)) == schedule
    for damaged in (b"", b"{", b"[]", b'{"schedule_id": 1}'):
        with pytest.raises(Corruption):
            read_schedule("schedule/s", damaged)
