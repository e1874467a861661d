"""How the ring of signing keys comes to be and changes. Each change is one compare-and-set."""

from typing import Any, Final

import msgspec

from flowfabric.core.tokens import ALGORITHM, Key, KeyRing, is_hex, is_in_grace, is_kid, same_text
from flowfabric.errors import (
    Corruption,
    InvalidGraceMs,
    InvalidInput,
    InvalidKid,
    InvalidSecretHex,
    RotationConflict,
)

FIRST_KID: Final = "k1"
SEED_DIGITS: Final = 64
_SHORTEST_SECRET: Final = 32
_MAX_GRACE_MS: Final = 2**53 - 1
_KID_FORM: Final = "1 to 64 of A-Z a-z 0-9 . _ -"

_replace = msgspec.structs.replace


def write_ring(ring: KeyRing) -> bytes:
    return msgspec.json.encode(ring)


def read_ring(body: bytes) -> KeyRing:
    """A stored ring. A member of a key that makes no sense counts as missing, so that one bad
    entry fails closed by itself and not with all the others."""
    try:
        stored = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Corruption("keys: ring: not readable") from None
    keys = stored.get("keys")
    return KeyRing(
        current_kid=_text(stored.get("current_kid")),
        keys={kid: _key(key) for kid, key in keys.items()} if isinstance(keys, dict) else {},
        previous_kid=_text(stored.get("previous_kid")),
        previous_expires_at=_instant(stored.get("previous_expires_at")),
    )


def _key(stored: object) -> Key:
    members = stored if isinstance(stored, dict) else {}
    return Key(
        _text(members.get("secret")),
        _text(members.get("alg", ALGORITHM)),
        _instant(members.get("created_at")),
        _instant(members.get("expires_at")),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _instant(value: object) -> int:
    return value if type(value) is int else 0


def first_ring(kid: str, secret_hex: str, now: int) -> KeyRing:
    return KeyRing(current_kid=kid, keys={kid: Key(secret_hex, created_at=now)})


def check_secret(secret_hex: str) -> str:
    """A secret an operator configured: hex, at least 16 bytes."""
    if not is_hex(secret_hex) or len(secret_hex) < _SHORTEST_SECRET:
        raise InvalidInput("the waitpoint secret must be an even number of hex digits, at least 32")
    return secret_hex


def is_secret(key: Key | None, secret_hex: str) -> bool:
    """Whether the key has this secret, in either case of its digits."""
    return key is not None and same_text(key.secret.lower(), secret_hex.lower())


class Seeding(msgspec.Struct, frozen=True):
    """What a seed found or made; `ring` is what to store, None when it is there already."""

    kid: str
    ring: KeyRing | None = None
    same_secret: bool = True


def seed(ring: KeyRing, kid: str, secret_hex: str, now: int) -> Seeding:
    """Install the first key of a ring; another one is a matter for a rotation."""
    if not isinstance(kid, str) or not is_kid(kid):
        raise InvalidInput(f"kid: {_KID_FORM}")
    if not isinstance(secret_hex, str) or len(secret_hex) != SEED_DIGITS or not is_hex(secret_hex):
        raise InvalidInput(f"secret_hex: exactly {SEED_DIGITS} hex digits")
    if ring.current_kid and ring.current_kid != kid:
        raise InvalidInput(f"kid: {ring.current_kid} is installed; rotate to change it")
    installed = ring.keys.get(kid)
    if ring.current_kid and installed is not None and installed.secret:
        return Seeding(kid, same_secret=is_secret(installed, secret_hex))
    keys = {**ring.keys, kid: Key(secret_hex, created_at=now)}
    return Seeding(kid, _replace(ring, current_kid=kid, keys=keys))


class Rotation(msgspec.Struct, frozen=True):
    """The ring after a rotation, and what became of the others; None when nothing changes."""

    new_kid: str
    ring: KeyRing | None = None
    previous_kid: str = ""
    gc_count: int = 0
    is_noop: bool = False


def rotate(ring: KeyRing, kid: str, secret_hex: str, grace_ms: object, now: int) -> Rotation:
    """Make a key the current one; a repeat with the same key and secret changes nothing."""
    grace = _checked_rotation(kid, secret_hex, grace_ms)
    installed = ring.keys.get(kid)
    has_secret = installed is not None and bool(installed.secret)
    if has_secret and not is_secret(installed, secret_hex):
        raise RotationConflict(kid)
    created_at = installed.created_at if installed else now
    if ring.current_kid == kid:
        if has_secret:
            return Rotation(kid, is_noop=True)
        keys = {**ring.keys, kid: Key(secret_hex, created_at=created_at)}
        return Rotation(kid, _replace(ring, keys=keys), is_noop=True)
    kept = {
        name: key
        for name, key in ring.keys.items()
        if name in (kid, ring.current_kid) or is_in_grace(key, now)
    }
    dropped = len(ring.keys) - len(kept)
    return Rotation(
        kid,
        _promoted(ring, kept, (kid, Key(secret_hex, created_at=created_at)), now + grace),
        ring.current_kid,
        dropped,
    )


def _promoted(
    ring: KeyRing, kept: dict[str, Key], new: tuple[str, Key], expires_at: int
) -> KeyRing:
    old = ring.current_kid
    if old in kept:
        kept[old] = _replace(kept[old], expires_at=expires_at)
    kept[new[0]] = new[1]
    return KeyRing(
        current_kid=new[0],
        keys=kept,
        previous_kid=old,
        previous_expires_at=expires_at if old else 0,
    )


def _checked_rotation(kid: str, secret_hex: str, grace_ms: object) -> int:
    if not isinstance(kid, str) or not is_kid(kid):
        raise InvalidKid(_KID_FORM)
    if not isinstance(secret_hex, str) or not is_hex(secret_hex):
        raise InvalidSecretHex("an even number of hex digits")
    if type(grace_ms) is not int or not 0 <= grace_ms <= _MAX_GRACE_MS:
        raise InvalidGraceMs(f"an integer in 0..{_MAX_GRACE_MS}")
    return grace_ms


def without_stale(ring: KeyRing, before: int) -> KeyRing:
    """The ring without keys whose grace ended before an instant; never without the current one."""
    keys = {
        name: key
        for name, key in ring.keys.items()
        if name == ring.current_kid or (key.expires_at > 0 and key.expires_at >= before)
    }
    return ring if len(keys) == len(ring.keys) else _replace(ring, keys=keys)
