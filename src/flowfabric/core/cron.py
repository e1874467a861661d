"""Five-field cron expressions, and when the clock of a time zone reaches them.

A matching local time fires at the first instant at which the local clock has reached it. So one
that a clock change repeats fires once, and one that it skips fires at the end of the gap.
"""

import re
from bisect import bisect, bisect_left
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import Final

import msgspec

from flowfabric.errors import InvalidInput

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE: Final = timedelta(minutes=1)
# No clock is ever put back by more.
_LONGEST_REPEAT: Final = timedelta(hours=3)
# The rarest date there is, a leap day on a given weekday, comes back within 40 years.
_HORIZON: Final = timedelta(days=366 * 41)
MAX_CRON_BYTES: Final = 256

_MONTHS: Final = (
    *("jan", "feb", "mar", "apr", "may", "jun"),
    *("jul", "aug", "sep", "oct", "nov", "dec"),
)
# Names for what is asked for most, each with its five fields.
NAMED: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_PART: Final = re.compile(r"(\*|(\w+)(?:-(\w+))?)(?:/(\d{1,4}))?", re.ASCII).fullmatch


class _Field(msgspec.Struct, frozen=True):
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    @property
    def last(self) -> int:
        """The end of a span that names none: Sunday, which is both 0 and 7, counts once."""
        return 6 if self.high == 7 else self.high


_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("weekday", 0, 7, _WEEKDAYS),
)


class Cron(msgspec.Struct, frozen=True):
    """The values each field allows. When both day fields are restricted, a date needs to match
    only one of them."""

    clock: tuple[time, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool

    def has(self, day: date) -> bool:
        by_day, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        matches = by_day or by_weekday if self.either_day else by_day and by_weekday
        return matches and day.month in self.months


@lru_cache(maxsize=256)
def parse_cron(text: str) -> Cron:
    """Read `minute hour day month weekday`, or a name such as `@daily`, or say what is wrong."""
    fields = NAMED.get(text, text).split() if len(text) <= MAX_CRON_BYTES else []
    if len(fields) != len(_FIELDS):
        raise InvalidInput(
            "cron: expected five fields, minute hour day month weekday, or one of"
            f" {', '.join(NAMED)}"
        )
    minutes, hours, days, months, weekdays = (
        _values(field, part) for field, part in zip(_FIELDS, fields, strict=True)
    )
    return Cron(
        clock=tuple(time(hour, minute) for hour in sorted(hours) for minute in sorted(minutes)),
        days=frozenset(days),
        months=frozenset(months),
        weekdays=frozenset(day % 7 for day in weekdays),
        either_day=not fields[2].startswith("*") and not fields[4].startswith("*"),
    )


def _values(field: _Field, text: str) -> set[int]:
    return {value for part in text.split(",") for value in _span(field, part)}


def _span(field: _Field, part: str) -> range:
    found = _PART(part)
    if found is None:
        raise _wrong(field, part)
    whole, first, last, step = found.groups()
    low = field.low if whole == "*" else _value(field, first, part)
    if last:
        high = _value(field, last, part)
    else:
        # "5/10" means every tenth from five on.
        high = field.last if whole == "*" or step else low
    if low > high or (step is not None and int(step) == 0):
        raise _wrong(field, part)
    return range(low, high + 1, int(step or 1))


def _value(field: _Field, text: str, part: str) -> int:
    if text.lower() in field.names:
        return field.names.index(text.lower()) + field.low
    if not text.isdigit() or not field.low <= int(text) <= field.high:
        raise _wrong(field, part)
    return int(text)


def _wrong(field: _Field, part: str) -> InvalidInput:
    return InvalidInput(f"cron: {field.name}: expected {field.low}-{field.high}, got {part!r}")


def next_after(cron: Cron, zone: tzinfo, instant: int) -> int | None:
    """The first time of the expression after an instant, in epoch milliseconds."""
    local = _local(instant, zone).replace(second=0, microsecond=0, fold=0)
    for moment in _moments(cron, local + _MINUTE, 1):
        reached = _reached(moment, zone)
        if reached > instant:
            return reached
    return None


def last_until(cron: Cron, zone: tzinfo, instant: int) -> int | None:
    """The last time of the expression that is not after an instant."""
    local = _local(instant, zone)
    # In a repeated hour the clock has already shown later times than it shows now.
    start = local.replace(fold=0) + (_LONGEST_REPEAT if local.fold else timedelta())
    for moment in _moments(cron, start, -1):
        reached = _reached(moment, zone)
        if reached <= instant:
            return reached
    return None


def _moments(cron: Cron, start: datetime, step: int) -> Iterator[datetime]:
    """Matching local times from `start` on, forwards or backwards."""
    for day in _days(cron, start.date(), step):
        clock = cron.clock
        if day == start.date():
            now = start.time()
            clock = clock[bisect_left(clock, now) :] if step > 0 else clock[: bisect(clock, now)]
        for moment in clock[::step]:
            yield datetime.combine(day, moment)


def _days(cron: Cron, start: date, step: int) -> Iterator[date]:
    day = start
    while abs(day - start) < _HORIZON:
        if cron.has(day):
            yield day
        if day.month not in cron.months:
            day = _edge_of_month(day, step)
        day += timedelta(days=step)


def _edge_of_month(day: date, step: int) -> date:
    """The last day of a month, or going backwards the first."""
    if step < 0:
        return day.replace(day=1)
    return (day.replace(day=28) + timedelta(days=4)).replace(day=1) - timedelta(days=1)


def _local(instant: int, zone: tzinfo) -> datetime:
    """What the clock of the zone shows, without the zone."""
    return (_EPOCH + timedelta(milliseconds=instant)).astimezone(zone).replace(tzinfo=None)


def _reached(moment: datetime, zone: tzinfo) -> int:
    """The first instant at which the clock of the zone has reached a local time."""
    instant = _instant(moment.replace(tzinfo=zone))
    if _local(instant, zone).replace(fold=0) == moment:
        return instant
    return _end_of_gap(_instant(moment.replace(tzinfo=zone, fold=1)), instant, zone)


def _end_of_gap(before: int, after: int, zone: tzinfo) -> int:
    """The instant between these two at which the clock is put forward."""
    shift = _shift(after, zone)
    while after - before > 1:
        middle = (before + after) // 2
        before, after = (before, middle) if _shift(middle, zone) == shift else (middle, after)
    return after


def _shift(instant: int, zone: tzinfo) -> timedelta:
    return _local(instant, zone) - (_EPOCH + timedelta(milliseconds=instant)).replace(tzinfo=None)


def _instant(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)
