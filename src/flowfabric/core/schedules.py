"""Schedules: what is submitted again and again, and at which times."""

from collections.abc import Mapping
from datetime import tzinfo
from typing import Final, Literal
from zlib import crc32

import msgspec

from flowfabric.core.cron import last_until, next_after, parse_cron
from flowfabric.core.derived import derived_uuid
from flowfabric.errors import Corruption, InvalidInput

Overlap = Literal["allow", "skip"]
CatchUp = Literal["latest", "all", "none"]

# Where nothing is caught up, nothing is submitted for a time that is found due later than this.
LATE_MS: Final = 60_000
LONGEST_JITTER_MS: Final = 86_400_000
MOST_TIMES: Final = 1_000
SHORTEST_EVERY_MS: Final = 100
LONGEST_EVERY_MS: Final = 100 * 366 * 86_400_000
# Far in the future, and well inside the range of a calendar.
LATEST: Final = 2**47
DOCUMENT: Final = "schedule/"


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schedule as it is stored; of `every_ms` and `cron` exactly one is set, 0 is no instant."""

    schedule_id: str
    namespace: str = "default"
    # what to submit
    kind: str
    lane: str = ""
    payload: bytes = b""
    payload_encoding: str = ""
    policy: str = ""
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    priority: int | None = None
    typed: bool = False
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
    jitter_ms: int = 0
    # history
    next_at: int = 0
    last_fired_at: int = 0
    last_execution_id: str = ""
    created_at: int = 0
    changed_at: int = 0


class Firing(msgspec.Struct, frozen=True):
    """What a due schedule leads to: the times to submit for, oldest first, and the schedule with
    its next time, not yet with what was submitted."""

    times: tuple[int, ...]
    moved: Schedule


def time_after(schedule: Schedule, zone: tzinfo, instant: int) -> int | None:
    """The first time of a schedule after an instant; None when there is none."""
    instant = max(instant, schedule.start_at - 1)
    if schedule.every_ms:
        found: int | None = instant + schedule.every_ms - _since_time(schedule, instant)
    else:
        found = next_after(parse_cron(schedule.cron), zone, instant)
    return found if found is not None and found <= (schedule.end_at or LATEST) else None


def time_until(schedule: Schedule, zone: tzinfo, instant: int) -> int | None:
    """The last time of a schedule that is not after an instant; None when there is none."""
    instant = min(instant, schedule.end_at or LATEST)
    if schedule.every_ms:
        found: int | None = instant - _since_time(schedule, instant)
    else:
        found = last_until(parse_cron(schedule.cron), zone, instant)
    return found if found is not None and found >= schedule.start_at else None


def _since_time(schedule: Schedule, instant: int) -> int:
    """How long before the instant an interval ended. Without a start, intervals are counted from
    the creation of the schedule."""
    return (instant - (schedule.start_at or schedule.created_at)) % schedule.every_ms


def start_of(schedule: Schedule, time: int) -> int | None:
    """When the work of a time may start, if it is spread: up to the jitter later, and for one time
    always the same."""
    if not schedule.jitter_ms:
        return None
    own = f"{schedule.namespace}:{schedule.schedule_id}:{time}"
    return time + crc32(own.encode()) % (schedule.jitter_ms + 1)


def placed(asked: Schedule, before: Schedule | None, zone: tzinfo, now: int) -> Schedule:
    """A schedule as it is put at an instant, over the one that was there.

    Its history is kept, and its next time unless its times change: a program that puts the same
    schedule at every start does not postpone it.
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
    next_at = time_after(schedule, zone, now - 1 if schedule.start_at == now else now)
    if next_at is None and time_until(schedule, zone, LATEST) is None:
        raise InvalidInput("cron, start_at, end_at: no time ever comes")
    return msgspec.structs.replace(schedule, next_at=next_at or 0)


def _timing(schedule: Schedule) -> tuple[object, ...]:
    span = schedule.start_at, schedule.end_at
    return schedule.every_ms, schedule.cron, schedule.tz, *span


def fire(schedule: Schedule, zone: tzinfo, now: int) -> Firing:
    """Which of the times that have passed are submitted for, and the next time of the schedule."""
    moved = msgspec.structs.replace(schedule, next_at=time_after(schedule, zone, now) or 0)
    if schedule.paused:
        return Firing((), moved)
    # With overlap "skip" the first execution would have the others skipped.
    one_for_all = schedule.catch_up != "all" or schedule.overlap == "skip"
    passed = _newest(schedule, zone, schedule.next_at, now, 1 if one_for_all else MOST_TIMES)
    if schedule.catch_up == "none":
        passed = tuple(time for time in passed if now - time <= LATE_MS)
    return Firing(passed, moved)


def missed(schedule: Schedule, zone: tzinfo, now: int) -> tuple[int, ...]:
    """The times that have passed since it fired, oldest first; of very many the newest."""
    return _newest(schedule, zone, schedule.next_at, now, MOST_TIMES)


def _newest(schedule: Schedule, zone: tzinfo, first: int, last: int, most: int) -> tuple[int, ...]:
    """The newest times from `first` to `last`, oldest first."""
    found: list[int] = []
    time = time_until(schedule, zone, last)
    while time is not None and time >= first and len(found) < most:
        found.append(time)
        time = time_until(schedule, zone, time - 1)
    return tuple(reversed(found))


def between(schedule: Schedule, zone: tzinfo, first: int, last: int) -> tuple[int, ...]:
    """All times from `first` to `last`; too many are refused."""
    found = _newest(schedule, zone, first, last, MOST_TIMES + 1)
    if len(found) > MOST_TIMES:
        raise InvalidInput(f"from, to: more than {MOST_TIMES} times lie between them")
    return found


def resumed(schedule: Schedule, zone: tzinfo, now: int) -> Schedule:
    """Fire again from now on; times that passed during the pause are skipped."""
    next_at = schedule.next_at
    if schedule.paused and 0 < next_at <= now:
        next_at = time_after(schedule, zone, now) or 0
    return msgspec.structs.replace(schedule, paused=False, next_at=next_at, changed_at=now)


def marked(tags: Mapping[str, object], schedule_id: str, time: int) -> dict[str, object]:
    """The tags of an execution: its own, the schedule it is of, and the time it is for."""
    return {**tags, "schedule_id": schedule_id, "scheduled_for": str(time)}


def fire_key(schedule_id: str, time: int) -> str:
    """The idempotency key of one fire time."""
    return f"schedule:{schedule_id}:{time}"


def fire_uuid(secret: bytes, namespace: str, schedule_id: str, time: int) -> str:
    """The same execution for the same time, even long after its key was forgotten."""
    return derived_uuid(secret, "fire", namespace, schedule_id, str(time))


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
