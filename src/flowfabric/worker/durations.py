"""Lengths of time as people write them: timedelta, seconds, or text such as "250ms", "5m", "3d"."""

import math
import re
from datetime import datetime, timedelta
from typing import Final

from flowfabric.errors import ConfigError

Duration = timedelta | float | str

_DAY: Final = 86_400_000
_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": _DAY, "w": 7 * _DAY}
_LONGEST_MS: Final = 2**51
_part: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_whole: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d|w))+")


def milliseconds(value: Duration, field: str = "duration") -> int:
    """The length in whole milliseconds; a negative or unreadable one is refused."""
    match value:
        case bool():
            raise _unreadable(value, field)
        case timedelta():
            length = value.total_seconds() * 1_000
        case int() | float():
            length = value * 1_000
        case str() if _whole.fullmatch(value.strip()):
            length = sum(float(n) * _UNITS[unit] for n, unit in _part.findall(value))
        case _:
            raise _unreadable(value, field)
    if not math.isfinite(length) or not 0 <= length <= _LONGEST_MS:
        raise ConfigError(f"{field}: expected a length of 0 ms to {_LONGEST_MS} ms, got {value!r}")
    return round(length)


def optional_ms(value: Duration | None, field: str = "timeout") -> int | None:
    return None if value is None else milliseconds(value, field)


def optional_seconds(value: Duration | None, field: str = "timeout") -> float | None:
    return None if value is None else milliseconds(value, field) / 1000


def instant_ms(value: datetime | float, field: str = "instant") -> int:
    """An instant in ms since the epoch, from a datetime with a zone or from seconds."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ConfigError(f"{field}: expected a datetime with a time zone")
        return round(value.timestamp() * 1_000)
    return milliseconds(value, field)


def _unreadable(value: object, field: str) -> ConfigError:
    return ConfigError(
        f'{field}: expected a timedelta, seconds or text such as "250ms" or "5m", got {value!r}'
    )
