"""Settings, and the only reader of the environment."""

import hashlib
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import msgspec

from flowfabric.core.faults import place_and_reason
from flowfabric.core.ids import check_lane, check_namespace
from flowfabric.core.key_ring import check_secret
from flowfabric.core.partitions import PartitionCounts
from flowfabric.core.tokens import Secret
from flowfabric.errors import InvalidInput

DEFAULT_PATH: Final = "flowfabric.db"
_SHORTEST_SWEEP_MS: Final = 100

Scope = Literal["read", "submit", "worker", "admin"]
SCOPES: Final[frozenset[Scope]] = frozenset(get_args(Scope))


SERVER_SCHEMES: Final = frozenset({"http", "https"})


class StoreUrl(msgspec.Struct, frozen=True):
    """Which store, and where: `sqlite:///path`, `memory://`, `valkey://host:port`; or which server
    has one, whose whole address is the path then."""

    scheme: str
    path: str = ""
    options: Mapping[str, str] = msgspec.field(default_factory=dict)
    host: str = "localhost"
    port: int = 6379
    user: str = ""
    password: Secret = Secret("")


class ApiToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token the server accepts, known by its digest alone; no namespaces means all of them."""

    name: str
    digest: str
    scopes: frozenset[Scope] = SCOPES
    namespaces: frozenset[str] | None = None

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("name", self.name), ("scopes", sorted(self.scopes))]

    def __repr__(self) -> str:
        return f"ApiToken({self.name!r}, scopes={sorted(self.scopes)})"


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
    timer_sweep_interval_ms: int = 250
    retention_trimmer_interval_s: float = 60
    # Stream reads and tails under way at once.
    max_concurrent_stream_ops: int = 64
    # Signs waitpoint tokens; a store that keeps its own secret needs none.
    waitpoint_secret: Secret = Secret("")
    waitpoint_grace_ms: int = 86_400_000
    # Valkey: accept another kind of server; load the functions without asking for their version.
    allow_redis: bool = False
    force_lua_reload: bool = False
    # What a client of a server shows it.
    api_token: Secret = Secret("")
    # The server's own.
    listen: Address = Address()
    allow_insecure: bool = False
    allowed_hosts: frozenset[str] = frozenset()
    tokens: tuple[ApiToken, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_sse_streams: int = 1_000
    serves_metrics: bool = True


def token_digest(text: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


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
        case "valkey" | "valkeys" | "valkey+cluster" | "valkeys+cluster":
            return _valkey_url(parts, options)
        case "http" | "https" if parts.username is not None or parts.password is not None:
            raise InvalidInput("url: a server's address has no credentials in it; pass a token")
        case "http" | "https":
            return StoreUrl(parts.scheme, text)
        case scheme:
            raise InvalidInput(
                f"url: {scheme or 'no scheme'!r} is not a store this version opens; use "
                "sqlite:///path, valkey://host:port, memory:// or a server's http://host:port"
            )


def _valkey_url(parts: SplitResult, options: dict[str, str]) -> StoreUrl:
    try:
        port = parts.port
    except ValueError as fault:
        raise InvalidInput(f"url: {fault}") from None
    scheme, _, cluster = parts.scheme.partition("+")
    switched = {"cluster": bool(cluster), "tls": scheme == "valkeys"}
    return StoreUrl(
        "valkey",
        "",
        options | {name: "true" for name, is_on in switched.items() if is_on},
        host=parts.hostname or "localhost",
        port=port or 6379,
        user=unquote(parts.username or ""),
        password=Secret(unquote(parts.password or "")),
    )


def settings_from(
    environment: Mapping[str, str] | None = None, file: Path | None = None
) -> Settings:
    """Settings from FF_* variables, and from the file that FF_CONFIG or `file` names for those
    that are not set. Everything wrong with them is reported at once."""
    given = os.environ if environment is None else environment
    reader = _Reader(given)
    reader.add_file(file or (Path(given["FF_CONFIG"]) if given.get("FF_CONFIG") else None))
    values: dict[str, Any] = {}
    for name, field, read in _VARIABLES:
        reader.read(name, field, read, values)
    store = reader.store(values)
    tokens = _own_token(values.get("api_token")) + reader.tokens
    counts = {name: values.pop(name) for name in ("flow", "budget", "quota") if name in values}
    if reader.faults:
        raise InvalidInput("; ".join(reader.faults), problems=tuple(reader.faults))
    return Settings(store=store, tokens=tokens, counts=PartitionCounts(**counts), **values)


class _Reader:
    """Variables, from the environment first and then from a file, and what is wrong with them."""

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
        """The store the URL names; single variables may name it too, but no other one."""
        url: StoreUrl | None = values.pop("url", None)
        backend, path = values.pop("backend", None), values.pop("path", None)
        switched = [name for name in ("tls", "cluster") if values.pop(name, False)]
        host, port = values.pop("host", "localhost"), values.pop("port", 6379)
        store = StoreUrl(backend or "sqlite")
        if store.scheme == "sqlite":
            store = StoreUrl("sqlite", path or DEFAULT_PATH)
        elif store.scheme == "valkey":
            options = dict.fromkeys(switched, "true")
            store = StoreUrl("valkey", "", options, host=host or "", port=port or 0)
        if url is None:
            return store
        # A path of a store that is not chosen is not looked at.
        is_other_file = url.scheme == "sqlite" and path not in (None, url.path)
        if backend not in (None, url.scheme) or is_other_file:
            self.faults.append("invalid value for FF_URL: other variables name another store")
        return url

    def _text(self, name: str) -> str:
        return self._environment.get(name, "") or self._file.get(name, "")

    def _tokens(self, tables: object) -> Iterator[ApiToken]:
        for place, table in enumerate(tables if isinstance(tables, list) else [tables]):
            try:
                yield _token(msgspec.convert(table, _TokenTable), place)
            except msgspec.ValidationError as fault:
                told = place_and_reason(str(fault), "token")
                self.faults.append(f"invalid value for token[{place}]: {told}")
            except (InvalidInput, ValueError) as fault:
                self._refuse(f"token[{place}]", fault)

    def _refuse(self, name: str, fault: Exception) -> None:
        reason = fault.detail if isinstance(fault, InvalidInput) else fault
        self.faults.append(f"invalid value for {name}: {reason}")


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


def _integer(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
            raise ValueError(f"expected an integer in {low}..{high}, got {text!r}")
        return int(text)

    return read


def _seconds(low: float, high: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not low <= value <= high:
            raise ValueError(f"expected seconds in {low:g}..{high:g}, got {text!r}")
        return value

    return read


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
    return max(_SHORTEST_SWEEP_MS, _integer(0, 3_600_000)(text))


def _backend(text: str) -> str:
    name = text.lower()
    if name not in ("sqlite", "valkey", "memory"):
        raise ValueError(f"expected sqlite, valkey or memory, got {text!r}")
    return name


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host:
        raise ValueError(f"expected host:port, got {text!r}")
    return Address(host, _integer(0, 65_535)(port))


def _api_token(text: str) -> Secret:
    """The one token of a variable; never repeated in a message."""
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("expected printable ASCII without blanks")
    return Secret(text)


def _own_token(secret: Secret | None) -> tuple[ApiToken, ...]:
    """What a server keeps of it."""
    if not secret:
        return ()
    return (ApiToken(name="FF_API_TOKEN", digest=token_digest(secret.reveal())),)


_U16: Final = _integer(1, 65_535)
_U32: Final = _integer(1, 2**32 - 1)
_VARIABLES: Final[tuple[tuple[str, str, Callable[[str], Any]], ...]] = (
    ("FF_URL", "url", parse_store_url),
    ("FF_BACKEND", "backend", _backend),
    ("FF_SQLITE_PATH", "path", str),
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
    ("FF_RETENTION_TRIMMER_INTERVAL_S", "retention_trimmer_interval_s", _seconds(0.1, 86_400)),
    ("FF_MAX_CONCURRENT_STREAM_OPS", "max_concurrent_stream_ops", _U32),
    ("FF_MAX_SSE_STREAMS", "max_sse_streams", _U32),
    ("FF_WAITPOINT_HMAC_SECRET", "waitpoint_secret", _secret),
    ("FF_WAITPOINT_HMAC_GRACE_MS", "waitpoint_grace_ms", _integer(0, 2**53 - 1)),
    ("FF_LISTEN_ADDR", "listen", _address),
    ("FF_ALLOW_INSECURE", "allow_insecure", _boolean),
    ("FF_ALLOWED_HOSTS", "allowed_hosts", _hosts),
    ("FF_API_TOKEN", "api_token", _api_token),
    ("FF_CORS_ORIGINS", "cors_origins", _listed),
)
# A second name, looked at when the first is unset.
_ALIASES: Final = {"FF_MAX_CONCURRENT_STREAM_OPS": "FF_MAX_CONCURRENT_TAIL"}
