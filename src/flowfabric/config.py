"""Settings, and the only reader of the environment."""

import os
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from flowfabric.core.ids import check_lane
from flowfabric.core.key_ring import check_secret
from flowfabric.core.partitions import PartitionCounts
from flowfabric.core.tokens import Secret
from flowfabric.errors import InvalidInput

DEFAULT_PATH: Final = "flowfabric.db"
_SHORTEST_SWEEP_MS: Final = 100


class StoreUrl(msgspec.Struct, frozen=True):
    """Which store, and where: `sqlite:///path`, `memory://`."""

    scheme: str
    path: str = ""
    options: Mapping[str, str] = msgspec.field(default_factory=dict)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    store: StoreUrl = StoreUrl("sqlite", DEFAULT_PATH)
    counts: PartitionCounts = PartitionCounts()
    lanes: tuple[str, ...] = ("default",)
    searchable_tags: frozenset[str] = frozenset()
    timer_sweep_interval_ms: int = 250
    retention_trimmer_interval_s: int = 60
    # Stream reads and tails under way at once.
    max_concurrent_stream_ops: int = 64
    # Signs waitpoint tokens; a store that keeps its own secret needs none.
    waitpoint_secret: Secret = Secret("")
    waitpoint_grace_ms: int = 86_400_000


def parse_store_url(text: str) -> StoreUrl:
    """A store's address. A SQLite path is relative after three slashes, absolute after four."""
    parts = urlsplit(text)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    match parts.scheme:
        case "memory":
            return StoreUrl("memory", "", options)
        case "sqlite" if parts.netloc:
            raise InvalidInput(
                f"url: write sqlite:///{parts.netloc}{parts.path}, with three slashes"
            )
        case "sqlite":
            path = unquote(parts.path.removeprefix("/"))
            if not path:
                raise InvalidInput("url: sqlite:/// needs a path to a file")
            return StoreUrl("sqlite", path, options)
        case scheme:
            raise InvalidInput(
                f"url: {scheme or 'no scheme'!r} is not a store this version opens; "
                "use sqlite:///path or memory://"
            )


def settings_from(environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from FF_* variables. Everything wrong with them is reported at once."""
    reader = _Reader(os.environ if environment is None else environment)
    values: dict[str, Any] = {}
    for name, field, read in _VARIABLES:
        reader.read(name, field, read, values)
    if "url" in values:
        values["store"] = values.pop("url")
    elif "path" in values:
        values["store"] = StoreUrl("sqlite", values["path"])
    values.pop("path", None)
    counts = {name: values.pop(name) for name in ("flow", "budget", "quota") if name in values}
    if reader.faults:
        raise InvalidInput("; ".join(reader.faults))
    return Settings(counts=PartitionCounts(**counts), **values)


class _Reader:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.faults: list[str] = []

    def read(self, name: str, field: str, read: Callable[[str], Any], into: dict[str, Any]) -> None:
        text = self._environment.get(name, "")
        if not text and name in _ALIASES:
            name = _ALIASES[name]
            text = self._environment.get(name, "")
        if not text:
            return
        try:
            into[field] = read(text)
        except (InvalidInput, ValueError) as fault:
            into[field] = None
            self.faults.append(
                f"{name}: {fault.detail if isinstance(fault, InvalidInput) else fault}"
            )


def _integer(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
            raise ValueError(f"expected an integer in {low}..{high}, got {text!r}")
        return int(text)

    return read


def _lanes(text: str) -> tuple[str, ...]:
    lanes = tuple(check_lane(name.strip()) for name in text.split(","))
    if len(set(lanes)) != len(lanes):
        raise ValueError(f"a lane is named twice in {text!r}")
    return lanes


def _tags(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(",") if name.strip())


def _secret(text: str) -> Secret:
    return Secret(check_secret(text))


def _sweep(text: str) -> int:
    return max(_SHORTEST_SWEEP_MS, _integer(0, 3_600_000)(text))


_U16: Final = _integer(1, 65_535)
_VARIABLES: Final[tuple[tuple[str, str, Callable[[str], Any]], ...]] = (
    ("FF_URL", "url", parse_store_url),
    ("FF_SQLITE_PATH", "path", str),
    ("FF_LANES", "lanes", _lanes),
    ("FF_SEARCHABLE_TAGS", "searchable_tags", _tags),
    ("FF_FLOW_PARTITIONS", "flow", _U16),
    ("FF_BUDGET_PARTITIONS", "budget", _U16),
    ("FF_QUOTA_PARTITIONS", "quota", _U16),
    ("FF_TIMER_SWEEP_INTERVAL_MS", "timer_sweep_interval_ms", _sweep),
    ("FF_RETENTION_TRIMMER_INTERVAL_S", "retention_trimmer_interval_s", _integer(1, 86_400)),
    ("FF_MAX_CONCURRENT_STREAM_OPS", "max_concurrent_stream_ops", _integer(1, 2**32 - 1)),
    ("FF_WAITPOINT_HMAC_SECRET", "waitpoint_secret", _secret),
    ("FF_WAITPOINT_HMAC_GRACE_MS", "waitpoint_grace_ms", _integer(0, 2**53 - 1)),
)
# A second name, looked at when the first is unset.
_ALIASES: Final = {"FF_MAX_CONCURRENT_STREAM_OPS": "FF_MAX_CONCURRENT_TAIL"}
