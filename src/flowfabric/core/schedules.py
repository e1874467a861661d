"""Schedules: what is submitted again and again, and at which times."""

from datetime import tzinfo
from typing import Final, Literal, Protocol
from uuid import UUID, uuid5

import msgspec

from flowfabric.core.cron import Cron, last_until, next_after, parse_cron
from flowfabric.errors import Corruption, InvalidInput

Overlap = Literal["allow", "skip"]
CatchUp = Literal["latest", "all", "none"]

# A time met later than this was missed: where nothing is caught up, nothing is submitted for it.
LATE_MS: Final = 60_000
MOST_TIMES: Final = 1_000
SHORTEST_EVERY_MS: Final = 100
LONGEST_EVERY_MS: Final = 100 * 366 * 86_400_000
# Far in the future, and well inside the range of a calendar.
LATEST: Final = 2**47
DOCUMENT: Final = "schedule/"
_IDS: Final = UUID("8f0c9d6e-94a5-5c39-9f0b-7d1f5e6c2a10")


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schedule as it is stored; of `every_ms` and `cron` exactly one is set, 0 is no instant."""

    schedule_id: str
    namespace: str = "default"
    # what to submit
    kind: str
    lane: str = "default"
    payload: bytes = b""
    payload_encoding: str = ""
    policy: str = ""
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    priority: int | None = None
    # when
    every_ms: int = 0
    cron: str = ""
    tz: str = "UTC"
    start_at: int = 0
    end_at: int = 0
    # how
    paused: bool = False
    overlap: Overlap = "allow"
    catch_up: CatchUp = "latest"
    # what became of it
    next_at: int = 0
    last_fired_at: int = 0
    last_execution_id: str = ""
    created_at: int = 0
    changed_at: int = 0


class Times(Protocol):
    """The times of a schedule, in both directions; None where there are no more."""

    def after(self, instant: int) -> int | None: ...

    def until(self, instant: int) -> int | None: ...


class Firing(msgspec.Struct, frozen=True):
    """What a look at a due schedule leads to: times to submit for, oldest first, and the schedule
    as it is afterwards, but for what was submitted."""

    times: tuple[int, ...]
    moved: Schedule


class _Grid:
    """Every so many milliseconds, before and after an anchor."""

    def __init__(self, every: int, anchor: int) -> None:
        self._every, self._anchor = every, anchor

    def after(self, instant: int) -> int | None:
        return instant + self._every - (instant - self._anchor) % self._every

    def until(self, instant: int) -> int | None:
        return instant - (instant - self._anchor) % self._every


class _Calendar:
    def __init__(self, cron: Cron, zone: tzinfo) -> None:
        self._cron, self._zone = cron, zone

    def after(self, instant: int) -> int | None:
        return next_after(self._cron, self._zone, instant)

    def until(self, instant: int) -> int | None:
        return last_until(self._cron, self._zone, instant)


class _Bounded:
    """Times from `start` to `end`, both included."""

    def __init__(self, times: Times, start: int, end: int) -> None:
        self._times, self._start, self._end = times, start, end

    def after(self, instant: int) -> int | None:
        found = self._times.after(max(instant, self._start - 1))
        return found if found is not None and found <= self._end else None

    def until(self, instant: int) -> int | None:
        found = self._times.until(min(instant, self._end))
        return found if found is not None and found >= self._start else None


def times_of(schedule: Schedule, zone: tzinfo) -> Times:
    """A grid without a start is anchored where the schedule was made."""
    times: Times
    if schedule.every_ms:
        times = _Grid(schedule.every_ms, schedule.start_at or schedule.created_at)
    else:
        times = _Calendar(parse_cron(schedule.cron), zone)
    return _Bounded(times, schedule.start_at, schedule.end_at or LATEST)


def placed(asked: Schedule, before: Schedule | None, zone: tzinfo, now: int) -> Schedule:
    """A schedule as it is put at an instant, over the one that was there.

    What only its history knows stays; its next time too unless the times themselves are others,
    so that whoever puts the same schedule at every start never pushes it away.
    """
    created_at = before.created_at if before else now
    schedule = msgspec.structs.replace(
        asked,
        created_at=created_at,
        changed_at=now,
        last_fired_at=before.last_fired_at if before else 0,
        last_execution_id=before.last_execution_id if before else "",
    )
    if before is not None and _timing(before) == _timing(asked):
        return msgspec.structs.replace(schedule, next_at=before.next_at)
    times = times_of(schedule, zone)
    next_at = times.after(now - 1 if schedule.start_at == now else now)
    if next_at is None and times.until(LATEST) is None:
        raise InvalidInput("cron, start_at, end_at: no time ever comes")
    return msgspec.structs.replace(schedule, next_at=next_at or 0)


def _timing(schedule: Schedule) -> tuple[object, ...]:
    span = schedule.start_at, schedule.end_at
    return schedule.every_ms, schedule.cron, schedule.tz, *span


def fire(schedule: Schedule, zone: tzinfo, now: int) -> Firing:
    """Which of the times since the last look are submitted for, and when to look again."""
    times = times_of(schedule, zone)
    moved = msgspec.structs.replace(schedule, next_at=times.after(now) or 0)
    if schedule.paused:
        return Firing((), moved)
    # One execution stands for all where the next would be skipped because of it.
    one_for_all = schedule.catch_up != "all" or schedule.overlap == "skip"
    met = _met(times, schedule.next_at, now, 1 if one_for_all else MOST_TIMES)
    if schedule.catch_up == "none":
        met = tuple(time for time in met if now - time <= LATE_MS)
    return Firing(met, moved)


def missed(schedule: Schedule, zone: tzinfo, now: int) -> tuple[int, ...]:
    """The times since the last look, oldest first; of very many the newest."""
    return _met(times_of(schedule, zone), schedule.next_at, now, MOST_TIMES)


def _met(times: Times, first: int, last: int, most: int) -> tuple[int, ...]:
    """The newest times from `first` to `last`, oldest first."""
    found: list[int] = []
    time = times.until(last)
    while time is not None and time >= first and len(found) < most:
        found.append(time)
        time = times.until(time - 1)
    return tuple(reversed(found))


def between(schedule: Schedule, zone: tzinfo, first: int, last: int) -> tuple[int, ...]:
    """All times from `first` to `last`; too many are refused."""
    found = _met(times_of(schedule, zone), first, last, MOST_TIMES + 1)
    if len(found) > MOST_TIMES:
        raise InvalidInput(f"from, to: more than {MOST_TIMES} times lie between them")
    return found


def resumed(schedule: Schedule, zone: tzinfo, now: int) -> Schedule:
    """Fire again from now on; times that passed during the pause are over."""
    next_at = schedule.next_at
    if schedule.paused and 0 < next_at <= now:
        next_at = times_of(schedule, zone).after(now) or 0
    return msgspec.structs.replace(schedule, paused=False, next_at=next_at, changed_at=now)


def marked(schedule: Schedule, time: int) -> dict[str, str]:
    """The tags of an execution: those asked for, whose schedule it is and which time it is for."""
    return {**schedule.tags, "schedule_id": schedule.schedule_id, "scheduled_for": str(time)}


def fire_key(schedule_id: str, time: int) -> str:
    """The idempotency key of one fire time."""
    return f"schedule:{schedule_id}:{time}"


def fire_uuid(namespace: str, schedule_id: str, time: int) -> str:
    """The same execution for the same time, even long after its key was forgotten."""
    return str(uuid5(_IDS, f"{namespace}:{fire_key(schedule_id, time)}"))


def document_name(namespace: str, schedule_id: str) -> str:
    """A schedule is a name within its namespace, which has no colon."""
    return f"{DOCUMENT}{namespace}:{schedule_id}"


def write_schedule(schedule: Schedule) -> bytes:
    return msgspec.json.encode(schedule)


_decoder: Final = msgspec.json.Decoder(Schedule)


def read_schedule(document: str, body: bytes) -> Schedule:
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError as fault:
        raise Corruption(f"{document}: {fault}") from fault
