"""Schedules as somebody asks for them, checked before anything is stored."""

from datetime import tzinfo
from functools import cache
from typing import Any, Final, get_args
from zoneinfo import ZoneInfo, available_timezones

import msgspec

from flowfabric.core.cron import MAX_CRON_BYTES
from flowfabric.core.ids import check_schedule_id, check_text
from flowfabric.core.policy import freeze
from flowfabric.core.schedules import (
    LATEST,
    LONGEST_EVERY_MS,
    SHORTEST_EVERY_MS,
    CatchUp,
    Overlap,
    Schedule,
)
from flowfabric.core.tags import submitted_tags
from flowfabric.engine.checking import body, whole
from flowfabric.errors import InvalidInput
from flowfabric.operations.schedules import NewSchedule

# A schedule is a small document, read whole whenever it is due.
MAX_PAYLOAD_BYTES: Final = 64 * 1024


def checked_schedule(schedule_id: str, order: NewSchedule) -> Schedule:
    """The schedule that is asked for, without its history; what it submits is not judged yet."""
    policy = bytes(order.policy) if isinstance(order.policy, msgspec.Raw) else order.policy
    return Schedule(
        schedule_id=check_schedule_id(schedule_id),
        namespace=order.namespace,
        kind=check_text(order.kind, "execution_kind", 1024, allow_empty=False),
        lane=order.lane,
        payload=body(order.payload, "payload", MAX_PAYLOAD_BYTES),
        payload_encoding=order.payload_encoding,
        policy=freeze(policy),
        tags=submitted_tags(order.tags),
        priority=order.priority,
        paused=_one_of(order.paused, "paused", (None, False, True)) or False,
        overlap=_one_of(order.overlap, "overlap", get_args(Overlap)),
        catch_up=_one_of(order.catch_up, "catch_up", get_args(CatchUp)),
        **_checked_times(order),
    )


def _checked_times(order: NewSchedule) -> dict[str, Any]:
    if (order.every_ms is None) == (order.cron is None):
        raise InvalidInput("every_ms, cron: expected exactly one of them")
    start_at = whole(0 if order.start_at is None else order.start_at, "start_at", 0, LATEST)
    end_at = whole(0 if order.end_at is None else order.end_at, "end_at", 0, LATEST)
    if end_at and end_at < start_at:
        raise InvalidInput("end_at: expected an instant that is not before start_at")
    zone_of(order.tz)
    times: dict[str, Any] = {"start_at": start_at, "end_at": end_at, "tz": order.tz}
    if order.cron is not None:
        times["cron"] = check_text(order.cron, "cron", MAX_CRON_BYTES, allow_empty=False)
    else:
        times["every_ms"] = whole(order.every_ms, "every_ms", SHORTEST_EVERY_MS, LONGEST_EVERY_MS)
    return times


def _one_of(value: Any, field: str, allowed: tuple[object, ...]) -> Any:
    if any(value is one or (isinstance(value, str) and value == one) for one in allowed):
        return value
    names = ", ".join(str(one).lower() for one in allowed if one is not None)
    raise InvalidInput(f"{field}: expected one of {names}")


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


def zone_of(name: object) -> tzinfo:
    """The time zone of an IANA name."""
    if not isinstance(name, str) or name not in _zones():
        shown = f"{name!r:.80}"
        raise InvalidInput(f"tz: expected an IANA time zone like Europe/Berlin, got {shown}")
    return ZoneInfo(name)
