"""Waitpoint tokens: signed, checked in constant time, and never shown by accident.

How the ring of signing keys changes is `key_ring`'s; this module signs and verifies with it.
"""

import hashlib
import hmac
import re
from typing import Final

import msgspec

from flowfabric.core.redaction import Redacted
from flowfabric.errors import (
    HmacSecretNotInitialized,
    InvalidSecret,
    InvalidToken,
    MissingToken,
    TokenExpired,
)

ALGORITHM: Final = "hmac-sha256"
DIGEST_LENGTH: Final = 64
FINGERPRINT_LENGTH: Final = 16
is_kid: Final = re.compile(r"[A-Za-z0-9._-]{1,64}").fullmatch
is_hex: Final = re.compile(r"(?:[0-9a-fA-F]{2})+").fullmatch


_JSON_NAMES: Final[dict[type, str]] = {list: "array", dict: "object"}


class WaitpointToken:
    """A bearer credential. Printing it shows its key id only; `reveal` is for the wire."""

    __slots__ = ("_raw",)

    def __init__(self, raw: str) -> None:
        self._raw = raw

    def reveal(self) -> str:
        return self._raw

    @property
    def kid(self) -> str:
        return self._raw.partition(":")[0] if ":" in self._raw else ""

    @property
    def digest(self) -> str:
        return self._raw.partition(":")[2]

    @property
    def fingerprint(self) -> str:
        return self.digest[:FINGERPRINT_LENGTH]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WaitpointToken):
            return NotImplemented
        return same_text(self._raw, other._raw)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        if not is_kid(self.kid) or len(self.digest) != DIGEST_LENGTH:
            return "<REDACTED:malformed>"
        return f"{self.kid}:<REDACTED:len={DIGEST_LENGTH}>"

    __str__ = __repr__


class Secret:
    """A text nobody may see by accident; `reveal` is for whoever needs it."""

    __slots__ = ("_raw",)

    def __init__(self, raw: str) -> None:
        self._raw = raw

    def reveal(self) -> str:
        return self._raw

    def __bool__(self) -> bool:
        return bool(self._raw)

    def __eq__(self, other: object) -> bool:
        return same_text(self._raw, other._raw) if isinstance(other, Secret) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "<REDACTED>" if self._raw else "<unset>"

    __str__ = __repr__


def token_to_text(value: object) -> str:
    """For encoders: a token as a document or the wire holds it."""
    if isinstance(value, WaitpointToken):
        return value.reveal()
    raise NotImplementedError(f"no way to write a {type(value).__name__}")


def token_from_text(kind: type, value: object) -> WaitpointToken:
    """For decoders: the way back."""
    if kind is WaitpointToken and isinstance(value, str):
        return WaitpointToken(value)
    if kind is WaitpointToken:
        raise TypeError(
            f"Expected `str`, got `{_JSON_NAMES.get(type(value), type(value).__name__)}`"
        )
    raise NotImplementedError(f"no way to read a {kind.__name__}")


def same_text(one: str, other: str) -> bool:
    """The only comparison of secrets: its time tells nothing about where they differ."""
    # Any text has an encoding of its own here, also one that no store would take.
    first, second = (text.encode("utf-8", "surrogatepass") for text in (one, other))
    return hmac.compare_digest(first, second)


class Key(Redacted, frozen=True, omit_defaults=True):
    """A signing key. `expires_at` is 0 for the current one, which never expires."""

    hidden = frozenset({"secret"})

    secret: str
    alg: str = ALGORITHM
    created_at: int = 0
    expires_at: int = 0


class KeyRing(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """All keys of a deployment. The current one signs and never expires."""

    current_kid: str = ""
    keys: dict[str, Key] = msgspec.field(default_factory=dict)
    previous_kid: str = ""
    previous_expires_at: int = 0


_NO_RING: Final = "the key ring has no current key; boot a server first"


class Signed(msgspec.Struct, frozen=True):
    """What a token vouches for."""

    execution_id: str
    waitpoint_id: str
    created_at: int
    waitpoint_key: str


def mint(ring: KeyRing, signed: Signed) -> WaitpointToken:
    key = ring.keys.get(ring.current_kid)
    if key is None or not key.secret:
        raise HmacSecretNotInitialized(_NO_RING)
    return WaitpointToken(f"{ring.current_kid}:{_digest(key, ring.current_kid, signed)}")


def check_token(ring: KeyRing, token: WaitpointToken, signed: Signed | None, now: int) -> None:
    """Refuse a token that does not vouch for `signed`; None stands for an unknown waitpoint."""
    raw = token.reveal()
    if not raw:
        raise MissingToken("a waitpoint token is required")
    kid, digest = token.kid, token.digest
    if not kid or len(digest) != DIGEST_LENGTH:
        raise InvalidToken("malformed")
    key = _verifying_key(ring, kid, now)
    # A waitpoint nobody has costs the same work as a wrong digest, so that time tells nothing.
    fits = same_text(_digest(key, kid, signed or _NOTHING), digest)
    if not fits or signed is None or not signed.created_at:
        raise InvalidToken("it does not fit this waitpoint")


_NOTHING: Final = Signed("", "", 0, "")
_NO_KEY: Final = Key("")


def _verifying_key(ring: KeyRing, kid: str, now: int) -> Key:
    if not ring.current_kid:
        raise HmacSecretNotInitialized(_NO_RING)
    if kid == ring.current_kid:
        return ring.keys.get(kid, _NO_KEY)
    key = ring.keys.get(kid)
    if key is None:
        # The same words as for a wrong digest: they are all a guesser gets to see.
        raise InvalidToken("it does not fit this waitpoint")
    if not is_in_grace(key, now):
        raise TokenExpired(f"key {kid} is past its grace")
    return key


def is_in_grace(key: Key, now: int) -> bool:
    return key.expires_at > 0 and key.expires_at >= now


def _digest(key: Key, kid: str, signed: Signed) -> str:
    if not is_hex(key.secret) or key.alg != ALGORITHM:
        raise InvalidSecret(f"the stored key {kid} cannot be used for {ALGORITHM}")
    message = "|".join(
        (
            "v2",
            kid,
            signed.execution_id,
            signed.waitpoint_id,
            str(signed.created_at),
            signed.waitpoint_key,
        )
    )
    return hmac.new(bytes.fromhex(key.secret), message.encode(), hashlib.sha256).hexdigest()
