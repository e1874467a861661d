"""Callers: the digests of API tokens, their scopes and their namespaces."""

from collections.abc import Iterable
from typing import Final

import msgspec

from flowfabric.config import ApiToken, token_digest
from flowfabric.core.scopes import SCOPES, Scope, granted
from flowfabric.core.tokens import same_text
from flowfabric.errors import Forbidden, Unauthorized

_SCHEME: Final = b"Bearer "


class Caller(msgspec.Struct, frozen=True):
    """A caller and its scopes; `namespaces` is None when it may act in all of them."""

    name: str = ""
    scopes: frozenset[Scope] = SCOPES
    namespaces: frozenset[str] | None = None

    def require_scope(self, wanted: frozenset[Scope]) -> None:
        """One of the scopes is enough."""
        if wanted and self.scopes.isdisjoint(wanted):
            raise Forbidden(f"scope {' or '.join(sorted(wanted))}")

    def require_namespace(self, namespace: str) -> None:
        if not self.may_see(namespace):
            raise Forbidden(f"namespace {namespace}")

    def may_see(self, namespace: str) -> bool:
        return self.namespaces is None or namespace in self.namespaces


_EVERYBODY: Final = Caller()
# The caller of a route that needs no token.
ANONYMOUS: Final = Caller(scopes=frozenset())


class Tokens:
    """The tokens of a server; without any, every caller may do everything."""

    def __init__(self, tokens: Iterable[ApiToken]) -> None:
        self._known = [(one.digest, _caller(one)) for one in tokens]

    @property
    def are_needed(self) -> bool:
        return bool(self._known)

    def caller_of(self, authorization: bytes | None) -> Caller:
        """The caller of an Authorization header. All digests are compared, so that the time taken
        does not reveal which one fits."""
        if not self._known:
            return _EVERYBODY
        if authorization is None or not authorization.startswith(_SCHEME):
            raise _unauthorized()
        presented = token_digest(authorization[len(_SCHEME) :].decode("latin-1"))
        found: Caller | None = None
        for digest, caller in self._known:
            if same_text(digest, presented):
                found = caller
        if found is None:
            raise _unauthorized()
        return found


def _caller(token: ApiToken) -> Caller:
    return Caller(token.name, granted(token.scopes, token.namespaces), token.namespaces)


def _unauthorized() -> Unauthorized:
    return Unauthorized("missing or invalid Authorization header")
