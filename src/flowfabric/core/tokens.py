"""Waitpoint tokens: signed, checked in constant time, and never shown by accident."""

import hashlib
import hmac
import re
from typing import Final

import msgspec

from flowfabric.errors import (
    HmacSecretNotInitialized,
    InvalidGraceMs,
    InvalidInput,
    InvalidKid,
    InvalidSecret,
    InvalidSecretHex,
    InvalidToken,
    MissingToken,
    RotationConflict,
    TokenExpired,
)

ALGORITHM: Final = "hmac-sha256"
DIGEST_LENGTH: Final = 64
FINGERPRINT_LENGTH: Final = 16
_MAX_GRACE_MS: Final = 2**53 - 1
_KID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}").fullmatch
_HEX: Final = re.compile(r"(?:[0-9a-fA-F]{2})+").fullmatch


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
        if not _KID(self.kid) or len(self.digest) != DIGEST_LENGTH:
            return "<REDACTED:malformed>"
        return f"{self.kid}:<REDACTED:len={DIGEST_LENGTH}>"

    __str__ = __repr__


def same_text(one: str, other: str) -> bool:
    """The only comparison of secrets: its time tells nothing about where they differ."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))


class Key(msgspec.Struct, frozen=True, omit_defaults=True):
    secret: str
    alg: str = ALGORITHM
    created_at: int = 0
    expires_at: int = 0

    def __repr__(self) -> str:
        return f"Key(alg={self.alg!r}, expires_at={self.expires_at})"


class KeyRing(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """All keys of a deployment. The current one signs and never expires."""

    current_kid: str = ""
    keys: dict[str, Key] = msgspec.field(default_factory=dict)
    previous_kid: str = ""
    previous_expires_at: int = 0


class Signed(msgspec.Struct, frozen=True):
    """What a token vouches for."""

    execution_id: str
    waitpoint_id: str
    created_at: int
    waitpoint_key: str


def mint(ring: KeyRing, signed: Signed) -> WaitpointToken:
    key = ring.keys.get(ring.current_kid)
    if key is None or not key.secret:
        raise HmacSecretNotInitialized("the key ring has no current key; boot a server first")
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
    if signed is None or not signed.created_at:
        raise InvalidToken("it does not fit this waitpoint")
    if not same_text(_digest(key, kid, signed), digest):
        raise InvalidToken("it does not fit this waitpoint")


def _verifying_key(ring: KeyRing, kid: str, now: int) -> Key:
    if not ring.current_kid:
        raise HmacSecretNotInitialized("the key ring has no current key; boot a server first")
    key = ring.keys.get(kid)
    if key is None:
        raise InvalidToken("unknown key id")
    if kid != ring.current_kid and not is_in_grace(key, now):
        raise TokenExpired(f"key {kid} is past its grace")
    return key


def is_in_grace(key: Key, now: int) -> bool:
    return key.expires_at > 0 and key.expires_at >= now


def _digest(key: Key, kid: str, signed: Signed) -> str:
    if not _HEX(key.secret):
        raise InvalidSecret(f"the stored secret of key {kid} is not hex")
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


class Rotated(msgspec.Struct, frozen=True):
    ring: KeyRing
    new_kid: str
    previous_kid: str = ""
    gc_count: int = 0
    is_noop: bool = False


def rotate(ring: KeyRing, kid: str, secret_hex: str, grace_ms: object, now: int) -> Rotated:
    """The ring after a rotation; a repeat with the same key and secret changes nothing."""
    grace = _checked_rotation(kid, secret_hex, grace_ms)
    installed = ring.keys.get(kid)
    if installed is not None and installed.secret and not same_text(installed.secret, secret_hex):
        raise RotationConflict(kid)
    if ring.current_kid == kid:
        if installed is not None and installed.secret:
            return Rotated(ring, kid, is_noop=True)
        keys = {**ring.keys, kid: Key(secret_hex, created_at=now)}
        return Rotated(msgspec.structs.replace(ring, keys=keys), kid, is_noop=True)
    kept = {
        name: key
        for name, key in ring.keys.items()
        if name in (kid, ring.current_kid) or is_in_grace(key, now)
    }
    dropped = len(ring.keys) - len(kept)
    old = ring.current_kid
    if old in kept:
        kept[old] = msgspec.structs.replace(kept[old], expires_at=now + grace)
    created_at = installed.created_at if installed else now
    kept[kid] = Key(secret_hex, created_at=created_at)
    rotated = KeyRing(
        current_kid=kid,
        keys=kept,
        previous_kid=old,
        previous_expires_at=now + grace if old else 0,
    )
    return Rotated(rotated, kid, previous_kid=old, gc_count=dropped)


def _checked_rotation(kid: str, secret_hex: str, grace_ms: object) -> int:
    if not isinstance(kid, str) or not _KID(kid):
        raise InvalidKid("1 to 64 of A-Z a-z 0-9 . _ -")
    if not isinstance(secret_hex, str) or not _HEX(secret_hex):
        raise InvalidSecretHex("an even number of hex digits")
    if type(grace_ms) is not int or not 0 <= grace_ms <= _MAX_GRACE_MS:
        raise InvalidGraceMs(f"an integer in 0..{_MAX_GRACE_MS}")
    return grace_ms


def without_stale(ring: KeyRing, before: int) -> KeyRing:
    """The ring without keys whose grace ended before an instant; never without the current one."""
    keys = {
        name: key
        for name, key in ring.keys.items()
        if name == ring.current_kid or (key.expires_at and key.expires_at >= before)
    }
    return ring if len(keys) == len(ring.keys) else msgspec.structs.replace(ring, keys=keys)


def check_secret(secret_hex: str) -> str:
    """A secret an operator configured: hex, at least 16 bytes."""
    if not _HEX(secret_hex) or len(secret_hex) < 32:
        raise InvalidInput("the waitpoint secret must be hex, at least 32 digits")
    return secret_hex
