"""Addresses of stores and servers."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import msgspec

from flowfabric.config.settings import StoreUrl
from flowfabric.core.tokens import Secret
from flowfabric.errors import InvalidInput

_SENTINEL_PORT: Final = 26379
_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "memory": (),
    "sqlite": ("durability",),
    "valkey": ("allow_volatile", "cluster", "durability", "sentinel_auth", "tls", "tls_ca"),
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
            return _server_url("postgres", parts, options, 5432)
        case "http" | "https" if parts.username is not None or parts.password is not None:
            raise InvalidInput("url: a server's address has no credentials in it; pass a token")
        case "http" | "https":
            return StoreUrl(parts.scheme, text)
        case scheme:
            raise InvalidInput(
                f"url: {scheme or 'no scheme'!r} is not a store this version opens; use "
                "sqlite:///path, valkey://host:port, memory:// or a server's http://host:port"
            )


def _options(parts: SplitResult) -> dict[str, str]:
    """A misspelt option must not pass in silence: it may be about durability."""
    given = parse_qs(parts.query, keep_blank_values=True)
    family = parts.scheme.partition("+")[0].replace("valkeys", "valkey")
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


def _valkey_url(parts: SplitResult, options: dict[str, str], usual_port: int = 6379) -> StoreUrl:
    scheme, _, kind = parts.scheme.partition("+")
    switched = {"cluster": kind == "cluster", "tls": scheme == "valkeys"}
    chosen = {name: "true" for name, is_on in switched.items() if is_on}
    return _server_url("valkey", parts._replace(path=""), options | chosen, usual_port)


def _sentinel_url(parts: SplitResult, options: dict[str, str]) -> StoreUrl:
    """Several addresses, and the name of what they watch."""
    name = unquote(parts.path.removeprefix("/"))
    if not name or "/" in name:
        raise InvalidInput(
            "url: sentinels watch a primary by a name; write valkey+sentinel://host:26379/name"
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
