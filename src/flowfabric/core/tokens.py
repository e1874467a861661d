"""Waitpoint tokens and the ring of keys that signs them.

Tokens are checked in constant time and never shown by accident. Each change of the ring is one
compare-and-set.
"""

import hashlib
import hmac
import re
from typing import Any, Final

import msgspec

from flowfabric import errors
from flowfabric.core.documents import Redacted

ALGORITHM: Final = "hmac-sha256"
DIGEST_LENGTH: Final = 64
FINGERPRINT_LENGTH: Final = 16
is_kid: Final = re.compile(r"[A-Za-z0-9._-]{1,64}").fullmatch
is_hex: Final = re.compile(r"(?:[0-9a-fA-F]{2})+").fullmatch


_JSON_NAMES: Final[dict[type, str]] = {list: "array", dict: "object"}


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
        return same_text(self._raw, other._raw) if type(other) is type(self) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "<REDACTED>" if self._raw else "<unset>"

    def __str__(self) -> str:
        return repr(self)


class WaitpointToken(Secret):
    """A bearer credential. Printing it shows its key id only."""

    __slots__ = ()

    @property
    def kid(self) -> str:
        return self._raw.partition(":")[0] if ":" in self._raw else ""

    @property
    def digest(self) -> str:
        return self._raw.partition(":")[2]

    def __repr__(self) -> str:
        if not is_kid(self.kid) or len(self.digest) != DIGEST_LENGTH:
            return "<REDACTED:malformed>"
        return f"{self.kid}:<REDACTED:len={DIGEST_LENGTH}>"


def token_digest(text: str) -> str:
    """The digest by which an API token is stored and compared."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class TokenDigest(msgspec.Struct, frozen=True, array_like=True):
    """What a store keeps of a token: it recognises the token and cannot be used in its place."""

    kid: str
    digest: bytes

    @property
    def fingerprint(self) -> str:
        return self.digest.hex()[:FINGERPRINT_LENGTH]


def digest_of(token: WaitpointToken) -> TokenDigest:
    return TokenDigest(token.kid, hashlib.sha256(token.reveal().encode()).digest())


def token_to_text(value: object) -> str:
    """For encoders: a token as a document or the wire holds it."""
    if isinstance(value, WaitpointToken):
        return value.reveal()
    raise NotImplementedError(f"no way to write a {type(value).__name__}")


def token_from_text(kind: type, value: object) -> WaitpointToken:
    """For decoders: the token of such a text."""
    if kind is WaitpointToken and isinstance(value, str):
        return WaitpointToken(value)
    if kind is WaitpointToken:
        raise TypeError(
            f"Expected `str`, got `{_JSON_NAMES.get(type(value), type(value).__name__)}`"
        )
    raise NotImplementedError(f"no way to read a {kind.__name__}")


def same_text(one: str, other: str) -> bool:
    # Any text has an encoding of its own here, also one that no store would take.
    return same_bytes(*(text.encode("utf-8", "surrogatepass") for text in (one, other)))


def same_bytes(one: bytes, other: bytes) -> bool:
    """The only comparison of secrets: its time tells nothing about where they differ."""
    return hmac.compare_digest(one, other)


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
    key = _current_key(ring)
    return WaitpointToken(f"{ring.current_kid}:{_digest(key, ring.current_kid, signed)}")


def minted_again(ring: KeyRing, kept: TokenDigest | None, signed: Signed) -> WaitpointToken | None:
    """The token of which a store keeps the digest; None when its key is gone."""
    key = None if kept is None else ring.keys.get(kept.kid)
    if kept is None or key is None:
        return None
    token = WaitpointToken(f"{kept.kid}:{_digest(key, kept.kid, signed)}")
    return token if same_bytes(digest_of(token).digest, kept.digest) else None


def current_secret(ring: KeyRing) -> bytes:
    return bytes.fromhex(_current_key(ring).secret)


def _current_key(ring: KeyRing) -> Key:
    key = ring.keys.get(ring.current_kid)
    if key is None or not key.secret:
        raise errors.HmacSecretNotInitialized(_NO_RING)
    return key


def check_token(ring: KeyRing, token: WaitpointToken, signed: Signed | None, now: int) -> None:
    """Refuse a token that does not vouch for `signed`; None stands for an unknown waitpoint."""
    raw = token.reveal()
    if not raw:
        raise errors.MissingToken("a waitpoint token is required")
    kid, digest = token.kid, token.digest
    if not kid or len(digest) != DIGEST_LENGTH:
        raise errors.InvalidToken("malformed")
    key = _verifying_key(ring, kid, now)
    # An unknown waitpoint takes as long as a wrong digest, so that the time reveals nothing.
    fits = same_text(_digest(key, kid, signed or _NOTHING), digest)
    if not fits or signed is None or not signed.created_at:
        raise errors.InvalidToken("it does not fit this waitpoint")


_NOTHING: Final = Signed("", "", 0, "")
_NO_KEY: Final = Key("")


def _verifying_key(ring: KeyRing, kid: str, now: int) -> Key:
    if not ring.current_kid:
        raise errors.HmacSecretNotInitialized(_NO_RING)
    if kid == ring.current_kid:
        return ring.keys.get(kid, _NO_KEY)
    key = ring.keys.get(kid)
    if key is None:
        # The same words as for a wrong digest: they are all a guesser gets to see.
        raise errors.InvalidToken("it does not fit this waitpoint")
    if not is_in_grace(key, now):
        raise errors.TokenExpired(f"key {kid} is past its grace")
    return key


def is_in_grace(key: Key, now: int) -> bool:
    return key.expires_at > 0 and key.expires_at >= now


def _digest(key: Key, kid: str, signed: Signed) -> str:
    if not is_hex(key.secret) or key.alg != ALGORITHM:
        raise errors.InvalidSecret(f"the stored key {kid} cannot be used for {ALGORITHM}")
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


FIRST_KID: Final = "k1"
SEED_DIGITS: Final = 64
_SHORTEST_SECRET: Final = 32
_LONGEST_SECRET: Final = 1_024
# The ring is one document that is read often, so it stays small.
MOST_KEYS: Final = 64
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
        raise errors.Corruption("keys: ring: not readable") from None
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
    if not is_hex(secret_hex) or not _SHORTEST_SECRET <= len(secret_hex) <= _LONGEST_SECRET:
        raise errors.InvalidInput(
            "the waitpoint secret must be an even number of hex digits, "
            f"at least {_SHORTEST_SECRET} and at most {_LONGEST_SECRET}"
        )
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
        raise errors.InvalidInput(f"kid: {_KID_FORM}")
    if not isinstance(secret_hex, str) or len(secret_hex) != SEED_DIGITS or not is_hex(secret_hex):
        raise errors.InvalidInput(f"secret_hex: exactly {SEED_DIGITS} hex digits")
    if ring.current_kid and ring.current_kid != kid:
        raise errors.InvalidInput(f"kid: {ring.current_kid} is installed; rotate to change it")
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
        raise errors.RotationConflict(kid)
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
    old, expires_at = ring.current_kid, now + grace
    if old in kept:
        kept[old] = _replace(kept[old], expires_at=expires_at)
    kept[kid] = Key(secret_hex, created_at=created_at)
    if len(kept) > MOST_KEYS:
        first = min(key.expires_at for name, key in kept.items() if name not in (kid, old))
        raise errors.ResourceExhausted(
            f"{len(kept) - 1} signing keys are within their grace; rotate when one has ended",
            retry_after_ms=first - now,
        )
    previous_expires_at = expires_at if old else 0
    after = KeyRing(
        current_kid=kid, keys=kept, previous_kid=old, previous_expires_at=previous_expires_at
    )
    return Rotation(kid, after, old, dropped)


def _checked_rotation(kid: str, secret_hex: str, grace_ms: object) -> int:
    if not isinstance(kid, str) or not is_kid(kid):
        raise errors.InvalidKid(_KID_FORM)
    if (
        not isinstance(secret_hex, str)
        or not _SHORTEST_SECRET <= len(secret_hex) <= _LONGEST_SECRET
        or not is_hex(secret_hex)
    ):
        raise errors.InvalidSecretHex(
            f"an even number of hex digits, {_SHORTEST_SECRET} to {_LONGEST_SECRET}"
        )
    if type(grace_ms) is not int or not 0 <= grace_ms <= _MAX_GRACE_MS:
        raise errors.InvalidGraceMs(f"an integer in 0..{_MAX_GRACE_MS}")
    return grace_ms


def without_stale(ring: KeyRing, before: int) -> KeyRing:
    """The ring without keys whose grace ended before an instant; never without the current one."""
    keys = {
        name: key
        for name, key in ring.keys.items()
        if name == ring.current_kid or (key.expires_at > 0 and key.expires_at >= before)
    }
    return ring if len(keys) == len(ring.keys) else _replace(ring, keys=keys)
