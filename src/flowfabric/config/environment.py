"""Settings from the environment and a configuration file; nothing else reads either."""

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from flowfabric.config.settings import (
    DEFAULT_PATH,
    Address,
    Settings,
    StoreUrl,
    parse_store_url,
    postgres_url,
)
from flowfabric.core.api_tokens import ApiToken
from flowfabric.core.faults import path_and_reason
from flowfabric.core.ids import PartitionCounts, check_lane, check_namespace
from flowfabric.core.retention import LOG_LIMITS, LogLimits
from flowfabric.core.scopes import MIN_TOKEN_LENGTH, Scope
from flowfabric.core.store_keys import parse_store_keys
from flowfabric.core.tokens import Secret, check_secret, token_digest
from flowfabric.errors import ConfigError, InvalidInput


def settings_from(
    environment: Mapping[str, str] | None = None, file: Path | None = None
) -> Settings:
    """Settings from FF_* variables, and from the file that FF_CONFIG or `file` names for those
    that are not set. All errors are reported at once."""
    given = os.environ if environment is None else environment
    reader = _Reader(given)
    reader.add_file(file or (Path(given["FF_CONFIG"]) if given.get("FF_CONFIG") else None))
    values: dict[str, Any] = {}
    for name, field, read in _VARIABLES:
        reader.read(name, field, read, values)
    store = reader.store(values)
    tokens = _own_token(values.get("api_token")) + reader.tokens
    log_limits = LogLimits(
        values.pop("log_ms", None) or LOG_LIMITS.keep_ms,
        values.pop("log_entries", None) or LOG_LIMITS.keep,
    )
    counts = {name: values.pop(name) for name in ("flow", "budget", "quota") if name in values}
    if reader.faults:
        raise InvalidInput("; ".join(reader.faults), problems=tuple(reader.faults))
    return Settings(
        store=store,
        tokens=tokens,
        counts=PartitionCounts(**counts),
        log_limits=log_limits,
        **values,
    )


class _Reader:
    """Reads variables from the environment, then from a file, and collects what is wrong."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._file: dict[str, str] = {}
        self.tokens: tuple[ApiToken, ...] = ()
        self.faults: list[str] = []

    def add_file(self, path: Path | None) -> None:
        if path is None:
            return
        try:
            members = tomllib.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as fault:
            self._refuse("FF_CONFIG", fault)
            return
        tokens = members.pop("token", [])
        self.tokens = tuple(self._tokens(tokens))
        known = {name for name, *_ in _VARIABLES} | set(_ALIASES.values())
        for key, value in members.items():
            name = f"FF_{key.upper()}"
            if name not in known or key != key.lower():
                self.faults.append(f"invalid value for FF_CONFIG: unknown key {key!r}")
            elif isinstance(value, dict):
                self.faults.append(f"invalid value for {name}: expected a value, got a table")
            else:
                self._file[name] = _as_text(value)

    def read(self, name: str, field: str, read: Callable[[str], Any], into: dict[str, Any]) -> None:
        text = self._text(name)
        if not text and name in _ALIASES:
            name = _ALIASES[name]
            text = self._text(name)
        if not text:
            return
        try:
            into[field] = read(text)
        except (InvalidInput, ValueError) as fault:
            into[field] = None
            self._refuse(name, fault)

    def store(self, values: dict[str, Any]) -> StoreUrl:
        """The store of FF_URL; variables of single settings must agree with it."""
        url: StoreUrl | None = values.pop("url", None)
        given = {name: values.pop(name) for name in _OF_STORES if values.get(name) is not None}
        for name in _OF_STORES:
            values.pop(name, None)
        if url is None:
            return self._single(given)
        if not _agrees(url, given):
            self.faults.append("invalid value for FF_URL: other variables describe another store")
        return url

    def _single(self, given: dict[str, Any]) -> StoreUrl:
        """The store that single variables describe."""
        match given.get("backend", "sqlite"):
            case "sqlite":
                return _file(given.get("path", DEFAULT_PATH))
            case "valkey":
                switched = [name for name in ("tls", "cluster") if given.get(name)]
                options = dict.fromkeys(switched, "true")
                host, port = given.get("host", "localhost"), given.get("port", 6379)
                return StoreUrl("valkey", "", options, host=host, port=port)
            case "postgres":
                if "postgres" not in given:
                    self.faults.append("invalid value for FF_POSTGRES_URL: postgres needs it")
                store: StoreUrl = given.get("postgres", StoreUrl("postgres"))
                return store
            case scheme:
                return StoreUrl(scheme)

    def _text(self, name: str) -> str:
        return self._environment.get(name, "") or self._file.get(name, "")

    def _tokens(self, tables: object) -> Iterator[ApiToken]:
        for place, table in enumerate(tables if isinstance(tables, list) else [tables]):
            try:
                yield _token(msgspec.convert(table, _TokenTable), place)
            except msgspec.ValidationError as fault:
                reason = path_and_reason(str(fault), "token")
                self.faults.append(f"invalid value for token[{place}]: {reason}")
            except (InvalidInput, ValueError) as fault:
                self._refuse(f"token[{place}]", fault)

    def _refuse(self, name: str, fault: Exception) -> None:
        reason = fault.detail if isinstance(fault, InvalidInput) else fault
        self.faults.append(f"invalid value for {name}: {reason}")


def _agrees(url: StoreUrl, given: Mapping[str, Any]) -> bool:
    """Whether the single variables describe the same store as the URL."""
    named: dict[str, object] = {"backend": url.scheme}
    match url.scheme:
        case "sqlite":
            named["path"] = url.path
        case "valkey":
            named |= {"host": url.host, "port": url.port}
            named |= {name: name in url.options for name in ("tls", "cluster")}
        case "postgres":
            named["postgres"] = url
    return all(named[name] == value for name, value in given.items() if name in named)


def _file(path: str) -> StoreUrl:
    """A file by its path or as a `file:` address; `:memory:` is the memory store."""
    if path.startswith("file:"):
        parts = urlsplit(path)
        if parts.query:
            raise InvalidInput("invalid value for FF_SQLITE_PATH: a file: address has no options")
        path = unquote(parts.path)
    return StoreUrl("memory") if path == ":memory:" else StoreUrl("sqlite", path)


class _TokenTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sha256: str
    scopes: frozenset[Scope]
    namespaces: frozenset[str] | None = None
    name: str = ""


def _token(table: _TokenTable, place: int) -> ApiToken:
    digest = table.sha256.lower()
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise ValueError("sha256: expected 64 hexadecimal digits")
    for namespace in table.namespaces or ():
        check_namespace(namespace, "namespaces")
    return ApiToken(
        name=table.name or f"token {place + 1}",
        digest=digest,
        scopes=table.scopes,
        namespaces=table.namespaces,
    )


def _as_text(value: object) -> str:
    """A TOML value as the variable would spell it."""
    if isinstance(value, list):
        return ",".join(_as_text(one) for one in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _own_token(secret: Secret | None) -> tuple[ApiToken, ...]:
    """The token of FF_API_TOKEN as a server keeps it."""
    if not secret:
        return ()
    return (ApiToken(name="FF_API_TOKEN", digest=token_digest(secret.reveal())),)


# ---- how the text of a variable is read

_MIN_SWEEP_MS: Final = 100
_MAX_INTERVAL_S: Final = 86_400
_MAX_RETENTION_S: Final = 10 * 366 * 86_400
# What a request may hold.
_MAX_PAYLOAD_BYTES: Final = 1024 * 1024


def _integer(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
            raise ValueError(f"expected an integer in {low}..{high}, got {text!r}")
        return int(text)

    return read


def _interval_s(text: str) -> float:
    """Seconds between two cycles of a duty; a shorter interval is raised to the minimum."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= _MAX_INTERVAL_S:
        raise ValueError(f"expected seconds in 0..{_MAX_INTERVAL_S}, got {text!r}")
    return max(_MIN_SWEEP_MS / 1000, value)


def _retention_ms(text: str) -> int:
    """An age at which something goes, in seconds."""
    return 1_000 * _integer(1, _MAX_RETENTION_S)(text)


def _boolean(text: str) -> bool:
    match text.lower():
        case "1" | "true":
            return True
        case "0" | "false":
            return False
        case _:
            raise ValueError(f"expected 1, true, 0 or false, got {text!r}")


def _listed(text: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in text.split(",") if one.strip())


def _lanes(text: str) -> tuple[str, ...]:
    lanes = tuple(check_lane(name) for name in _listed(text))
    if not lanes:
        raise ValueError("expected at least one lane")
    if len(set(lanes)) != len(lanes):
        raise ValueError(f"a lane is named twice in {text!r}")
    return lanes


def _tags(text: str) -> frozenset[str]:
    return frozenset(_listed(text))


def _hosts(text: str) -> frozenset[str]:
    return frozenset(host.lower() for host in _listed(text))


def _secret(text: str) -> Secret:
    return Secret(check_secret(text))


def _sweep(text: str) -> int:
    return max(_MIN_SWEEP_MS, _integer(0, 3_600_000)(text))


def _backend(text: str) -> str:
    name = text.lower()
    if name not in ("sqlite", "valkey", "postgres", "memory"):
        raise ValueError(f"expected sqlite, valkey, postgres or memory, got {text!r}")
    return name


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host:
        raise ValueError(f"expected host:port, got {text!r}")
    return Address(host, _integer(0, 65_535)(port))


def _api_token(text: str) -> Secret:
    """An API token; messages must not repeat it."""
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("expected printable ASCII without blanks")
    if len(text) < MIN_TOKEN_LENGTH:
        raise ValueError(f"expected {MIN_TOKEN_LENGTH} characters or more, got {len(text)}")
    return Secret(text)


def _readers(text: str) -> int:
    """One connection of the pool writes, the others read; at least one reads."""
    return max(1, _integer(1, 2**32 - 1)(text) - 1)


def _pool(text: str) -> int:
    """One connection commits and another reads."""
    return _integer(2, 1_000)(text)


# ---- variables

_U16: Final = _integer(1, 65_535)
_U32: Final = _integer(1, 2**32 - 1)
_VARIABLES: Final[tuple[tuple[str, str, Callable[[str], Any]], ...]] = (
    ("FF_URL", "url", parse_store_url),
    ("FF_BACKEND", "backend", _backend),
    ("FF_SQLITE_PATH", "path", str),
    ("FF_SQLITE_POOL_SIZE", "sqlite_readers", _readers),
    ("FF_POSTGRES_URL", "postgres", postgres_url),
    ("FF_POSTGRES_POOL_SIZE", "postgres_pool_size", _pool),
    ("FF_AUTO_MIGRATE", "auto_migrate", _boolean),
    ("FF_HOST", "host", str),
    ("FF_PORT", "port", _U16),
    ("FF_TLS", "tls", _boolean),
    ("FF_CLUSTER", "cluster", _boolean),
    ("FF_ALLOW_REDIS", "allow_redis", _boolean),
    ("FF_FORCE_LUA_RELOAD", "force_lua_reload", _boolean),
    ("FF_LANES", "lanes", _lanes),
    ("FF_SEARCHABLE_TAGS", "searchable_tags", _tags),
    ("FF_FLOW_PARTITIONS", "flow", _U16),
    ("FF_BUDGET_PARTITIONS", "budget", _U16),
    ("FF_QUOTA_PARTITIONS", "quota", _U16),
    ("FF_TIMER_SWEEP_INTERVAL_MS", "timer_sweep_interval_ms", _sweep),
    ("FF_RETENTION_TRIMMER_INTERVAL_S", "retention_trimmer_interval_s", _interval_s),
    ("FF_LOG_RETENTION_S", "log_ms", _retention_ms),
    ("FF_LOG_ENTRIES", "log_entries", _integer(1, 10**9)),
    ("FF_MAX_PAYLOAD_BYTES", "max_payload_bytes", _integer(1, _MAX_PAYLOAD_BYTES)),
    ("FF_MAX_CONCURRENT_STREAM_OPS", "max_concurrent_stream_ops", _U32),
    ("FF_MAX_SSE_STREAMS", "max_sse_streams", _U32),
    ("FF_WAITPOINT_HMAC_SECRET", "waitpoint_secret", _secret),
    ("FF_WAITPOINT_HMAC_GRACE_MS", "waitpoint_grace_ms", _integer(0, 2**53 - 1)),
    ("FF_STORE_KEY", "store_keys", parse_store_keys),
    ("FF_CLAIM_POLL_INTERVAL_MS", "claim_poll_interval_ms", _integer(100, 60_000)),
    ("FF_LISTEN_ADDR", "listen", _address),
    ("FF_ALLOW_INSECURE", "allow_insecure", _boolean),
    ("FF_METRICS_OPEN", "metrics_open", _boolean),
    ("FF_ALLOWED_HOSTS", "allowed_hosts", _hosts),
    ("FF_API_TOKEN", "api_token", _api_token),
    ("FF_CORS_ORIGINS", "cors_origins", _listed),
)
# Fields that choose the store; those of a store that is not chosen are checked and ignored.
_OF_STORES: Final = (
    *("backend", "path", "postgres"),
    *("host", "port", "tls", "cluster"),
)
# A second name, read when the first is unset.
_ALIASES: Final = {"FF_MAX_CONCURRENT_STREAM_OPS": "FF_MAX_CONCURRENT_TAIL"}


def settings_for(url: str | None, settings: Settings | None) -> Settings:
    """The given settings, or else those of the environment, with the store of `url` if given."""
    try:
        chosen = settings_from() if settings is None else settings
        if url is None:
            return chosen
        return msgspec.structs.replace(chosen, store=parse_store_url(url))
    except InvalidInput as fault:
        raise ConfigError(fault.detail) from fault
