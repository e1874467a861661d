"""Cron expressions: what they allow, and when the clocks of time zones reach them."""

from datetime import UTC, datetime, tzinfo
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.cron import NAMED, last_until, next_after, parse_cron
from flowfabric.errors import InvalidInput

BERLIN = ZoneInfo("Europe/Berlin")
NEW_YORK = ZoneInfo("America/New_York")
# Its clocks move by half an hour.
LORD_HOWE = ZoneInfo("Australia/Lord_Howe")
ZONES = [UTC, BERLIN, NEW_YORK, LORD_HOWE, ZoneInfo("Asia/Kathmandu"), ZoneInfo("Africa/Cairo")]


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def shown(instant: int | None, zone: tzinfo) -> str:
    assert instant is not None
    return datetime.fromtimestamp(instant / 1000, zone).isoformat(timespec="minutes")


def times(cron: str, zone: tzinfo, since: str, count: int) -> list[str]:
    parsed, instant, found = parse_cron(cron), at(since), []
    for _ in range(count):
        following = next_after(parsed, zone, instant)
        assert following is not None
        instant = following
        found.append(shown(instant, zone)[:16])
    return found


@pytest.mark.parametrize(
    ("cron", "since", "expected"),
    [
        ("*/20 * * * *", "2026-01-01T00:00Z", ["2026-01-01T00:20", "2026-01-01T00:40"]),
        ("5/25 1 * * *", "2026-01-01T00:00Z", ["2026-01-01T01:05", "2026-01-01T01:30"]),
        ("0 9-17/4 * * *", "2026-01-01T00:00Z", ["2026-01-01T09:00", "2026-01-01T13:00"]),
        ("0,30 8,20 * * *", "2026-01-01T08:00Z", ["2026-01-01T08:30", "2026-01-01T20:00"]),
        ("0 0 31 * *", "2026-01-31T00:00Z", ["2026-03-31T00:00", "2026-05-31T00:00"]),
        ("0 0 29 2 *", "2026-01-01T00:00Z", ["2028-02-29T00:00", "2032-02-29T00:00"]),
        ("0 0 * JAN,mar mon", "2026-01-25T00:00Z", ["2026-01-26T00:00", "2026-03-02T00:00"]),
        ("0 0 * * 7", "2026-01-01T00:00Z", ["2026-01-04T00:00", "2026-01-11T00:00"]),
        ("0 0 * * 0", "2026-01-01T00:00Z", ["2026-01-04T00:00", "2026-01-11T00:00"]),
        ("0 0 * * 5-7", "2026-01-01T00:00Z", ["2026-01-02T00:00", "2026-01-03T00:00"]),
        # Two restricted day fields: either is enough. A star that is only stepped narrows.
        ("0 0 13 * fri", "2026-01-01T00:00Z", ["2026-01-02T00:00", "2026-01-09T00:00"]),
        ("0 0 13 * */5", "2026-01-01T00:00Z", ["2026-02-13T00:00", "2026-03-13T00:00"]),
        ("59 23 31 12 *", "2026-12-31T23:59Z", ["2027-12-31T23:59", "2028-12-31T23:59"]),
    ],
)
def test_an_expression_has_its_times(cron: str, since: str, expected: list[str]) -> None:
    assert times(cron, UTC, since, 2) == expected


@pytest.mark.parametrize(
    "cron",
    [
        "",
        "* * * *",
        "* * * * * *",
        "@often",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 13 *",
        "* * * foo *",
        "* * * * 8",
        "*/0 * * * *",
        "30-10 * * * *",
        "1,,2 * * * *",
        "-1 * * * *",
        "1- * * * *",
        "* * L * *",
        "* * * * mon#2",
        "* * ? * *",
        "٣ * * * *",
        "9" * 200 + " * * * *",
        "* * * * " + "1," * 200 + "1",
    ],
)
def test_what_is_no_expression_is_refused(cron: str) -> None:
    with pytest.raises(InvalidInput, match=r"^invalid_input: cron: |^cron: "):
        parse_cron(cron)


def test_a_date_that_never_comes_has_no_time() -> None:
    never = parse_cron("0 0 30 2 *")
    assert next_after(never, UTC, at("2026-01-01T00:00Z")) is None
    assert last_until(never, UTC, at("2026-01-01T00:00Z")) is None


def test_a_skipped_time_fires_at_the_end_of_the_gap() -> None:
    # 02:00 to 03:00 did not exist on 29 March.
    assert times("30 2 * * *", BERLIN, "2026-03-27T12:00Z", 3) == [
        "2026-03-28T02:30",
        "2026-03-29T03:00",
        "2026-03-30T02:30",
    ]
    assert times("15 2 4 10 *", LORD_HOWE, "2026-09-01T00:00Z", 1) == ["2026-10-04T02:30"]


def test_all_times_of_a_gap_are_one() -> None:
    assert times("*/15 * * * *", BERLIN, "2026-03-29T00:40Z", 3) == [
        "2026-03-29T01:45",
        "2026-03-29T03:00",
        "2026-03-29T03:15",
    ]


def test_a_repeated_time_fires_once_at_its_first() -> None:
    parsed = parse_cron("30 2 * * *")
    first = next_after(parsed, BERLIN, at("2026-10-24T12:00Z"))
    assert shown(first, BERLIN) == "2026-10-25T02:30+02:00"
    assert first is not None
    assert shown(next_after(parsed, BERLIN, first), BERLIN) == "2026-10-26T02:30+01:00"
    # Seen from within the second pass it lies behind.
    again = at("2026-10-25T02:40+01:00")
    assert last_until(parsed, BERLIN, again) == first
    assert shown(next_after(parsed, BERLIN, again), BERLIN) == "2026-10-26T02:30+01:00"


@pytest.mark.parametrize("zone", ZONES, ids=str)
def test_a_year_of_local_mornings_has_one_for_each_day(zone: tzinfo) -> None:
    for cron in ("30 2 * * *", "0 0 * * *", "59 23 * * *"):
        parsed, instant = parse_cron(cron), at("2025-12-31T12:00Z")
        days = []
        while (instant := next_after(parsed, zone, instant) or 0) < at("2026-12-31T00:00Z"):
            days.append(shown(instant, zone)[:10])
        assert len(set(days)) == len(days)
        assert len(days) in (364, 365)


FIELDS = st.tuples(
    st.sampled_from(["*", "*/7", "0", "30", "15,45"]),
    st.sampled_from(["*", "2", "1-3", "*/6", "0,23"]),
    st.sampled_from(["*", "1", "29,30,31", "*/2"]),
    st.sampled_from(["*", "3", "10", "mar-oct", "2"]),
    st.sampled_from(["*", "sun", "1-5", "*/3"]),
)


@given(
    fields=FIELDS,
    zone=st.sampled_from(ZONES),
    instant=st.integers(at("2026-03-01T00:00Z"), at("2026-11-30T00:00Z")),
)
def test_both_directions_meet_the_same_times(
    fields: tuple[str, ...], zone: tzinfo, instant: int
) -> None:
    cron = parse_cron(" ".join(fields))
    forwards, now = [], instant
    for _ in range(20):
        following = next_after(cron, zone, now)
        if following is None:
            return
        now = following
        forwards.append(now)
    assert all(early < late for early, late in pairwise(forwards))
    backwards, now = [], forwards[-1]
    while now > instant:
        backwards.append(now)
        now = last_until(cron, zone, now - 1) or 0
    assert backwards[::-1] == forwards
    for fired in forwards:
        assert last_until(cron, zone, fired) == fired
        assert fired % 60_000 == 0


@pytest.mark.parametrize(("name", "fields"), NAMED.items())
def test_a_name_stands_for_its_fields(name: str, fields: str) -> None:
    assert parse_cron(name) == parse_cron(fields)
