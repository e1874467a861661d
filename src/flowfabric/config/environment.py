"""Settings from the environment and a file; the only reader of either."""

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from flowfabric.config import texts
from flowfabric.config.addresses import parse_store_url, postgres_url
from flowfabric.config.settings import (
    DEFAULT_PATH,
    ApiToken,
    Settings,
    StoreUrl,
    token_digest,
)
from flowfabric.core.faults import path_and_reason
from flowfabric.core.ids import check_namespace
from flowfabric.core.partitions import PartitionCounts
from flowfabric.core.scopes import Scope
from flowfabric.core.tokens import Secret
from flowfabric.errors import ConfigError, InvalidInput


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
        given = {name: values.pop(name) for name in _OF_STORES if values.get(name) is not None}
        for name in _OF_STORES:
            values.pop(name, None)
        if url is None:
            return self._single(given)
        if not _agrees(url, given):
            self.faults.append("invalid value for FF_URL: other variables name another store")
        return url

    def _single(self, given: dict[str, Any]) -> StoreUrl:
        """The store that variables name one by one."""
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
    """Whether single variables say nothing else than the URL does."""
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
    """A file by its name or as a `file:` address; one that is never written is memory."""
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
    """What a server keeps of it."""
    if not secret:
        return ()
    return (ApiToken(name="FF_API_TOKEN", digest=token_digest(secret.reveal())),)


_U16: Final = texts.integer(1, 65_535)
_U32: Final = texts.integer(1, 2**32 - 1)
_VARIABLES: Final[tuple[tuple[str, str, Callable[[str], Any]], ...]] = (
    ("FF_URL", "url", parse_store_url),
    ("FF_BACKEND", "backend", texts.backend),
    ("FF_SQLITE_PATH", "path", str),
    ("FF_SQLITE_POOL_SIZE", "sqlite_readers", texts.readers),
    ("FF_POSTGRES_URL", "postgres", postgres_url),
    ("FF_POSTGRES_POOL_SIZE", "postgres_pool", _U32),
    ("FF_AUTO_MIGRATE", "auto_migrate", texts.boolean),
    ("FF_HOST", "host", str),
    ("FF_PORT", "port", _U16),
    ("FF_TLS", "tls", texts.boolean),
    ("FF_CLUSTER", "cluster", texts.boolean),
    ("FF_ALLOW_REDIS", "allow_redis", texts.boolean),
    ("FF_FORCE_LUA_RELOAD", "force_lua_reload", texts.boolean),
    ("FF_LANES", "lanes", texts.lanes),
    ("FF_SEARCHABLE_TAGS", "searchable_tags", texts.tags),
    ("FF_FLOW_PARTITIONS", "flow", _U16),
    ("FF_BUDGET_PARTITIONS", "budget", _U16),
    ("FF_QUOTA_PARTITIONS", "quota", _U16),
    ("FF_TIMER_SWEEP_INTERVAL_MS", "timer_sweep_interval_ms", texts.sweep),
    ("FF_RETENTION_TRIMMER_INTERVAL_S", "retention_trimmer_interval_s", texts.interval_s),
    ("FF_MAX_CONCURRENT_STREAM_OPS", "max_concurrent_stream_ops", _U32),
    ("FF_MAX_SSE_STREAMS", "max_sse_streams", _U32),
    ("FF_WAITPOINT_HMAC_SECRET", "waitpoint_secret", texts.secret),
    ("FF_WAITPOINT_HMAC_GRACE_MS", "waitpoint_grace_ms", texts.integer(0, 2**53 - 1)),
    ("FF_CLAIM_POLL_INTERVAL_MS", "claim_poll_interval_ms", texts.integer(100, 60_000)),
    ("FF_LISTEN_ADDR", "listen", texts.address),
    ("FF_ALLOW_INSECURE", "allow_insecure", texts.boolean),
    ("FF_METRICS_OPEN", "metrics_open", texts.boolean),
    ("FF_ALLOWED_HOSTS", "allowed_hosts", texts.hosts),
    ("FF_API_TOKEN", "api_token", texts.api_token),
    ("FF_CORS_ORIGINS", "cors_origins", texts.listed),
)
# What only choosing a store needs; of a store that is not chosen they are read and left alone.
_OF_STORES: Final = (
    *("backend", "path", "postgres", "postgres_pool", "auto_migrate"),
    *("host", "port", "tls", "cluster"),
)
# A second name, looked at when the first is unset.
_ALIASES: Final = {"FF_MAX_CONCURRENT_STREAM_OPS": "FF_MAX_CONCURRENT_TAIL"}


def settings_for(url: str | None, settings: Settings | None) -> Settings:
    """The settings a program asked for; what it did not say comes from the environment."""
    try:
        chosen = settings_from() if settings is None else settings
        if url is None:
            return chosen
        return msgspec.structs.replace(chosen, store=parse_store_url(url))
    except InvalidInput as fault:
        raise ConfigError(fault.detail) from fault
