"""Settings of a process, with a default for each, and the addresses of stores."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import msgspec

from flowfabric.core.api_tokens import ApiToken
from flowfabric.core.duty_filter import DutyFilter
from flowfabric.core.ids import PartitionCounts
from flowfabric.core.retention import LOG_LIMITS, LogLimits
from flowfabric.core.store_keys import NO_KEYS, StoreKeys
from flowfabric.core.tokens import Secret
from flowfabric.errors import InvalidInput

DEFAULT_PATH: Final = "flowfabric.db"

SERVER_SCHEMES: Final = frozenset({"http", "https"})


class StoreUrl(msgspec.Struct, frozen=True):
    """The address of a store: `sqlite:///path`, `memory://`, `valkey://host:port`; or of a server,
    then `path` is the whole address."""

    scheme: str
    path: str = ""
    options: Mapping[str, str] = msgspec.field(default_factory=dict)
    host: str = "localhost"
    port: int = 6379
    user: str = ""
    password: Secret = Secret("")
    # Addresses of the sentinels; `path` is the name of the primary they monitor.
    sentinels: tuple[tuple[str, int], ...] = ()

    @property
    def where(self) -> str:
        """For messages and logs: without user and password."""
        switched = [name for name in ("tls", "cluster") if name in self.options]
        match self.scheme:
            case "valkey" if self.sentinels:
                places = ",".join(f"{host}:{port}" for host, port in self.sentinels)
                return " ".join([f"valkey {self.path} via sentinels {places}", *switched])
            case "valkey":
                return " ".join([f"{self.scheme} {self.host}:{self.port}", *switched])
            case "postgres":
                return f"postgres {self.host}:{self.port}/{self.path}"
            case "http" | "https":
                return self.path
            case _:
                return f"{self.scheme} {self.path}".rstrip()


class Address(msgspec.Struct, frozen=True):
    host: str = "127.0.0.1"
    port: int = 9090

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    store: StoreUrl = StoreUrl("sqlite", DEFAULT_PATH)
    counts: PartitionCounts = PartitionCounts()
    lanes: tuple[str, ...] = ("default",)
    searchable_tags: frozenset[str] = frozenset()
    # How long opening waits for a store that does not answer.
    boot_timeout_s: float = 60.0
    timer_sweep_interval_ms: int = 250
    retention_trimmer_interval_s: float = 60
    # How long entries of the log are kept, and how many.
    log_limits: LogLimits = LOG_LIMITS
    # The longest input or result of an execution.
    max_payload_bytes: int = 1024 * 1024
    scanner_filter: DutyFilter = DutyFilter()
    # Stream reads and tails in flight.
    max_concurrent_stream_ops: int = 64
    # Signs waitpoint tokens; SQLite and memory generate their own.
    waitpoint_secret: Secret = Secret("")
    # Generate one on a shared store, too, if that has none; only for development.
    generates_secret: bool = False
    waitpoint_grace_ms: int = 86_400_000
    # Encrypt the signing keys that the store holds.
    store_keys: StoreKeys = NO_KEYS
    # How often a waiting claim looks for work while notifications are down.
    claim_poll_interval_ms: int = 1_000
    # SQLite: threads that read; one more writes.
    sqlite_readers: int = 3
    # Postgres: connections besides the one that listens; bring an older schema up to date at boot.
    postgres_pool_size: int = 10
    auto_migrate: bool = False
    # Valkey: accept Redis; load the function library even if it is there; never load it, and refuse
    # a server without it.
    allow_redis: bool = False
    force_lua_reload: bool = False
    skip_library_load: bool = False
    # The token a client sends to a server.
    api_token: Secret = Secret("")
    # Of the server.
    listen: Address = Address()
    allow_insecure: bool = False
    allowed_hosts: frozenset[str] = frozenset()
    tokens: tuple[ApiToken, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_sse_streams: int = 1_000
    serves_metrics: bool = True
    # Metrics need no token.
    metrics_open: bool = False


_SENTINEL_PORT: Final = 26379
_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "memory": (),
    "postgres": (
        *("connect_timeout_ms", "host", "notify", "pool_size", "pooler"),
        *("request_timeout_ms", "schema"),
        *("sslcert", "sslkey", "sslmode", "sslrootcert"),
    ),
    "sqlite": ("durability", "pool_size"),
    "valkey": (
        *("allow_volatile", "cluster", "connect_timeout_ms", "durability", "request_timeout_ms"),
        *("retry_ms", "sentinel_auth", "tls", "tls_ca"),
    ),
}


def parse_store_url(text: str) -> StoreUrl:
    """A store's address. A SQLite path is relative after three slashes, absolute after four."""
    parts = urlsplit(text)
    options = _options(parts)
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
        case "valkey" | "valkeys" | "valkey+cluster" | "valkeys+cluster":
            return _valkey_url(parts, options)
        case "valkey+sentinel" | "valkeys+sentinel":
            return _sentinel_url(parts, options)
        case "postgresql" | "postgres":
            return _postgres_url(parts, options)
        case "http" | "https" if parts.username is not None or parts.password is not None:
            raise InvalidInput("url: a server's address has no credentials in it; pass a token")
        case "http" | "https":
            return StoreUrl(parts.scheme, text)
        case scheme:
            raise InvalidInput(
                f"url: {scheme or 'no scheme'!r} is not a store this version opens; use "
                "sqlite:///path, postgresql://user@host/database, valkey://host:port, memory://"
                " or a server's http://host:port"
            )


def _options(parts: SplitResult) -> dict[str, str]:
    """The options; an unknown one is refused, because a misspelt one may be about durability."""
    given = parse_qs(parts.query, keep_blank_values=True)
    family = parts.scheme.partition("+")[0].replace("valkeys", "valkey")
    family = family.replace("postgresql", "postgres")
    known = _OPTIONS.get(family)
    if known is not None:
        for name in given:
            if name not in known:
                names = f"known: {', '.join(known)}" if known else f"{family} has none"
                raise InvalidInput(f"url: unknown option {name!r:.80}; {names}")
    return {name: values[-1] for name, values in given.items()}


def postgres_url(text: str) -> StoreUrl:
    store = parse_store_url(text)
    if store.scheme != "postgres":
        raise InvalidInput("expected postgresql://user@host/database")
    return store


def _postgres_url(parts: SplitResult, options: dict[str, str]) -> StoreUrl:
    """`?host=` names the directory of a Unix socket, which a host in its usual place cannot."""
    store = _server_url("postgres", parts, options, 5432)
    if not store.path or "/" in store.path:
        raise InvalidInput("url: a database has one name; write postgresql://user@host/database")
    return msgspec.structs.replace(
        store, path=unquote(store.path), host=options.get("host", store.host)
    )


def _valkey_url(parts: SplitResult, options: dict[str, str], usual_port: int = 6379) -> StoreUrl:
    scheme, _, kind = parts.scheme.partition("+")
    switched = {"cluster": kind == "cluster", "tls": scheme == "valkeys"}
    chosen = {name: "true" for name, is_on in switched.items() if is_on}
    return _server_url("valkey", parts._replace(path=""), options | chosen, usual_port)


def _sentinel_url(parts: SplitResult, options: dict[str, str]) -> StoreUrl:
    """The addresses of several sentinels and the name of the primary they monitor."""
    name = unquote(parts.path.removeprefix("/"))
    if not name or "/" in name:
        raise InvalidInput(
            "url: sentinels monitor a primary by name; write valkey+sentinel://host:26379/name"
        )
    entering, at, places = parts.netloc.rpartition("@")
    found = [
        _valkey_url(parts._replace(netloc=f"{entering}{at}{place}"), options, _SENTINEL_PORT)
        for place in places.split(",")
    ]
    return msgspec.structs.replace(
        found[0], path=name, sentinels=tuple((one.host, one.port) for one in found)
    )


def _server_url(
    scheme: str, parts: SplitResult, options: dict[str, str], usual_port: int
) -> StoreUrl:
    try:
        port = parts.port
    except ValueError as fault:
        raise InvalidInput(f"url: {fault}") from None
    return StoreUrl(
        scheme,
        parts.path.removeprefix("/"),
        options,
        host=parts.hostname or "localhost",
        port=port or usual_port,
        user=unquote(parts.username or ""),
        password=Secret(unquote(parts.password or "")),
    )
