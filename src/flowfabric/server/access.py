"""Who may call: the check of Host and Origin, CORS, and API tokens with their scopes.

A server without a token trusts every caller on its network, so a page in a browser there must not
reach it: neither by DNS rebinding, nor by writing from another origin.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, Protocol

from flowfabric.config import ApiToken, Settings
from flowfabric.core.api_tokens import Grantor
from flowfabric.core.scopes import granted
from flowfabric.core.tokens import token_digest
from flowfabric.errors import Forbidden, InvalidInput, Unauthorized
from flowfabric.server.replies import Headers, Reply

_log = logging.getLogger("flowfabric.server")

# ---- tokens

_SCHEME: Final = b"Bearer "


class Caller(Grantor, frozen=True):
    """A caller and its scopes; `namespaces` is None when it may act in all of them."""

    def require_namespace(self, namespace: str) -> None:
        if self.namespaces is not None and namespace not in self.namespaces:
            raise Forbidden(f"namespace {namespace}")


_EVERYBODY: Final = Caller()
# The caller of a route that needs no token.
ANONYMOUS: Final = Caller(scopes=frozenset())


class MadeTokens(Protocol):
    """The tokens that were made at run time, by digest, as this process last read them."""

    @property
    def known(self) -> Mapping[str, ApiToken]: ...
    @property
    def are_needed(self) -> bool: ...


class Tokens:
    """The tokens of a server, of its settings and of its store; if there never was any, every
    caller may do everything."""

    def __init__(self, configured: Iterable[ApiToken], made: MadeTokens) -> None:
        self._configured = {one.digest: _caller(one) for one in configured}
        self._made = made

    @property
    def are_needed(self) -> bool:
        return bool(self._configured) or self._made.are_needed

    def share_of(self, caller: Caller) -> str:
        """By which name a caller has a share of what all callers have together; "" when there are
        no others to share with."""
        number = len(self._configured) + len(self._made.known)
        return caller.name if number > 1 else ""

    def caller_of(self, authorization: bytes | None) -> Caller:
        """The caller of an Authorization header. What is presented is hashed, and the digest is
        looked up: the time that takes can tell something of digests only, from which no token
        follows."""
        if not self.are_needed:
            return _EVERYBODY
        if authorization is None or not authorization.startswith(_SCHEME):
            raise _unauthorized()
        presented = token_digest(authorization[len(_SCHEME) :].decode("latin-1"))
        if (caller := self._configured.get(presented)) is not None:
            return caller
        if (made := self._made.known.get(presented)) is None:
            raise _unauthorized()
        return _caller(made)


def _caller(token: ApiToken) -> Caller:
    return Caller(token.name, granted(token.scopes, token.namespaces), token.namespaces)


def _unauthorized() -> Unauthorized:
    return Unauthorized("missing or invalid Authorization header")


# ---- web pages

_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_WILDCARDS: Final = frozenset({"0.0.0.0", "::"})
_METHODS: Final = b"GET, POST, PUT, DELETE"
_EXPOSED: Final = (b"access-control-expose-headers", b"X-Next-Cursor, Retry-After, X-Request-Id")
_VARY: Final = (b"vary", b"Origin")
_HEADER_VALUE: Final = re.compile(r"[!-~]+").fullmatch


class OriginCheck:
    """The check of the Host and Origin headers; a server with tokens needs none."""

    def __init__(self, settings: Settings, tokens: Tokens) -> None:
        self._tokens = tokens
        bound = settings.listen.host.lower()
        self._is_wildcard = bound in _WILDCARDS
        self._hosts = {"localhost", bound, *settings.allowed_hosts} - _WILDCARDS
        self._knows = lru_cache(maxsize=256)(self._is_known)

    def check(self, method: str, headers: dict[bytes, bytes], local: str) -> None:
        if self._tokens.are_needed:
            return
        host = headers.get(b"host", b"")
        if not self._knows(host, local):
            raise Forbidden("host")
        if method not in _READS:
            origin = headers.get(b"origin")
            if origin is not None and origin.partition(b"://")[2].lower() != host.lower():
                raise Forbidden("origin")

    def _is_known(self, host: bytes, local: str) -> bool:
        name = _without_port(host.decode("latin-1").lower())
        # A dual-stack socket shows an IPv4 address as IPv4-mapped IPv6.
        own = local.lower().removeprefix("::ffff:")
        return name in self._hosts or (self._is_wildcard and name == own)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


class Cors:
    """Cross-origin access for the configured origins."""

    def __init__(self, settings: Settings, tokens: Tokens) -> None:
        given = settings.cors_origins
        self._tokens = tokens
        self._allows_all = "*" in given
        usable = [origin for origin in given if origin != "*" and _HEADER_VALUE(origin)]
        for origin in set(given).difference(usable, {"*"}):
            _log.warning("FF_CORS_ORIGINS: %r is not a valid header value and is ignored", origin)
        if given and not usable and not self._allows_all:
            raise InvalidInput(
                "invalid value for FF_CORS_ORIGINS: no origin is a valid header value"
            )
        self._origins = frozenset(origin.encode() for origin in usable)
        self.is_on = bool(given)

    def headers(self, origin: bytes | None) -> Headers:
        """CORS headers of an answer to this origin."""
        if self._allows_all:
            return ((b"access-control-allow-origin", b"*"), _EXPOSED)
        if origin in self._origins and origin is not None:
            return ((b"access-control-allow-origin", origin), _VARY, _EXPOSED)
        return (_VARY,)

    def preflight(self, headers: dict[bytes, bytes]) -> Reply | None:
        """The answer to a preflight request; None for any other request."""
        origin = headers.get(b"origin")
        method = headers.get(b"access-control-request-method")
        if origin is None or method is None:
            return None
        if not self._allows_all and origin not in self._origins:
            return Reply(200, b"", (_VARY,))
        asked = headers.get(b"access-control-request-headers", b"*")
        known = b"content-type, last-event-id" + (
            b", authorization" if self._tokens.are_needed else b""
        )
        return Reply(
            200,
            b"",
            (
                *self.headers(origin),
                (b"access-control-allow-methods", method if self._allows_all else _METHODS),
                (b"access-control-allow-headers", asked if self._allows_all else known),
                (b"access-control-max-age", b"600"),
            ),
        )
