"""How the text of a variable is read."""

from collections.abc import Callable
from typing import Final

from flowfabric.config.settings import Address
from flowfabric.core.ids import check_lane
from flowfabric.core.key_ring import check_secret
from flowfabric.core.tokens import Secret

MIN_SWEEP_MS: Final = 100
MAX_INTERVAL_S: Final = 86_400


def integer(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
            raise ValueError(f"expected an integer in {low}..{high}, got {text!r}")
        return int(text)

    return read


def interval_s(text: str) -> float:
    """Seconds between two cycles of a duty; what is too short is raised."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MAX_INTERVAL_S:
        raise ValueError(f"expected seconds in 0..{MAX_INTERVAL_S}, got {text!r}")
    return max(MIN_SWEEP_MS / 1000, value)


def boolean(text: str) -> bool:
    match text.lower():
        case "1" | "true":
            return True
        case "0" | "false":
            return False
        case _:
            raise ValueError(f"expected 1, true, 0 or false, got {text!r}")


def listed(text: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in text.split(",") if one.strip())


def lanes(text: str) -> tuple[str, ...]:
    lanes = tuple(check_lane(name) for name in listed(text))
    if not lanes:
        raise ValueError("expected at least one lane")
    if len(set(lanes)) != len(lanes):
        raise ValueError(f"a lane is named twice in {text!r}")
    return lanes


def tags(text: str) -> frozenset[str]:
    return frozenset(listed(text))


def hosts(text: str) -> frozenset[str]:
    return frozenset(host.lower() for host in listed(text))


def secret(text: str) -> Secret:
    return Secret(check_secret(text))


def sweep(text: str) -> int:
    return max(MIN_SWEEP_MS, integer(0, 3_600_000)(text))


def backend(text: str) -> str:
    name = text.lower()
    if name not in ("sqlite", "valkey", "postgres", "memory"):
        raise ValueError(f"expected sqlite, valkey, postgres or memory, got {text!r}")
    return name


def address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host:
        raise ValueError(f"expected host:port, got {text!r}")
    return Address(host, integer(0, 65_535)(port))


def api_token(text: str) -> Secret:
    """The one token of a variable; never repeated in a message."""
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("expected printable ASCII without blanks")
    return Secret(text)


def readers(text: str) -> int:
    """Of a pool's connections one writes; there is always one that reads."""
    return max(1, integer(1, 2**32 - 1)(text) - 1)
