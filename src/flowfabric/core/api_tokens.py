"""API tokens made at run time: what is stored of them, and who may make, see and revoke which."""

from collections.abc import Iterable
from typing import Final

import msgspec

from flowfabric.core.ids import check_namespace, check_text
from flowfabric.core.scopes import SCOPES, Scope
from flowfabric.errors import Conflict, Corruption, Forbidden, InvalidInput

MOST_TOKENS: Final = 1_000
# An admin of some namespaces cannot use up the room of all.
MOST_OF_A_TENANT: Final = 100
_NAME_BYTES: Final = 200
# Names of tokens in the settings of servers begin so.
_RESERVED: Final = "FF_"
_LONGEST_MS: Final = 2**52

Namespaces = frozenset[str] | None


class ApiToken(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token, known by its digest; `namespaces` None means all, `expires_at` 0 never. One of a
    server's settings has no id."""

    name: str
    digest: str
    scopes: frozenset[Scope] = SCOPES
    namespaces: Namespaces = None
    token_id: str = ""
    created_at: int = 0
    created_by: str = ""
    expires_at: int = 0

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("name", self.name), ("scopes", sorted(self.scopes))]

    def __repr__(self) -> str:
        return f"ApiToken({self.name!r}, scopes={sorted(self.scopes)})"

    def is_visible(self, to: Namespaces) -> bool:
        """Whether a caller of these namespaces may know of it."""
        return to is None or (self.namespaces is not None and self.namespaces <= to)


class Grantor(msgspec.Struct, frozen=True):
    """Who makes a token, and what it may grant."""

    name: str = ""
    scopes: frozenset[Scope] = SCOPES
    namespaces: Namespaces = None


Stored = tuple[ApiToken, ...]

_decode: Final = msgspec.json.Decoder(Stored).decode
write_tokens: Final = msgspec.json.Encoder(order="deterministic").encode


def read_tokens(body: bytes) -> Stored:
    try:
        return _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Corruption("tokens: document: not readable") from None


def living(tokens: Iterable[ApiToken], now: int) -> Stored:
    return tuple(one for one in tokens if not one.expires_at or one.expires_at > now)


def check_terms(name: str, scopes: Iterable[Scope], namespaces: Iterable[str] | None) -> None:
    check_text(name, "name", _NAME_BYTES, allow_empty=False)
    if not name.isprintable() or name.startswith(_RESERVED):
        raise InvalidInput(f"name: expected printable text that does not begin with {_RESERVED}")
    if not tuple(scopes):
        raise InvalidInput("scopes: expected one or more")
    if namespaces is not None and not tuple(namespaces):
        raise InvalidInput("namespaces: expected one or more, or none at all for every namespace")
    for namespace in namespaces or ():
        check_namespace(namespace, "namespaces")


def check_lifetime(expires_in_ms: int | None) -> None:
    if expires_in_ms is not None and not 1 <= expires_in_ms <= _LONGEST_MS:
        raise InvalidInput(f"expires_in_ms: expected 1..{_LONGEST_MS}, got {expires_in_ms}")


def check_grant(by: Grantor, scopes: frozenset[Scope], namespaces: Namespaces) -> Namespaces:
    """The namespaces of a new token: those that were asked for, or all of its maker's. Nobody hands
    out more than it has."""
    if lacking := scopes - by.scopes:
        raise Forbidden(f"scope {' and '.join(sorted(lacking))}: the caller does not have it")
    if by.namespaces is None or namespaces is None:
        return by.namespaces if namespaces is None else namespaces
    if foreign := namespaces - by.namespaces:
        raise Forbidden(f"namespace {min(foreign)}")
    return namespaces


def added(tokens: Stored, new: ApiToken, by: Grantor) -> Stored:
    """The tokens with one more, if its name is free among those that its maker may see."""
    seen = [one for one in tokens if one.is_visible(by.namespaces)]
    if any(one.name == new.name for one in seen):
        raise Conflict(f"name: there is a token {new.name!r}; revoke it first or choose another")
    most = MOST_TOKENS if by.namespaces is None else MOST_OF_A_TENANT
    if len(seen) >= most or len(tokens) >= MOST_TOKENS:
        raise Conflict(f"tokens: there are {most} already; revoke some first")
    return (*tokens, new)
