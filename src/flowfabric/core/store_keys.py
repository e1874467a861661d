"""Keys of the operator that encrypt the signing keys in a store."""

import re
from typing import Final

import msgspec

from flowfabric.core.sealing import decrypted, encrypted
from flowfabric.core.tokens import Key, KeyRing, Secret
from flowfabric.errors import InvalidInput, InvalidSecret

_MARK: Final = "sealed:"
_is_key: Final = re.compile(r"(?:[0-9a-fA-F]{2}){32,}").fullmatch

_replace = msgspec.structs.replace


class StoreKeys(msgspec.Struct, frozen=True):
    """The first key encrypts and all decrypt. Without any, signing keys are stored in the clear."""

    keys: tuple[Secret, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.keys)


NO_KEYS: Final = StoreKeys()


class OpenedRing(msgspec.Struct, frozen=True):
    """A ring as it is used. `is_as_stored`: storing it once more would change nothing about how
    it is encrypted."""

    ring: KeyRing
    is_as_stored: bool


def parse_store_keys(text: str) -> StoreKeys:
    keys = tuple(one.strip() for one in text.split(","))
    if not all(map(_is_key, keys)):
        # The text itself must not be repeated: it is a secret.
        raise ValueError("expected keys of 64 hex digits or more, separated by commas")
    return StoreKeys(tuple(Secret(one.lower()) for one in keys))


def sealed_ring(ring: KeyRing, keys: StoreKeys) -> KeyRing:
    """The ring as it is stored."""
    if not keys:
        return ring
    first = _bytes(keys.keys[0])
    sealed = {
        kid: _replace(key, secret=_MARK + encrypted(first, _purpose(kid), key.secret))
        for kid, key in ring.keys.items()
    }
    return _replace(ring, keys=sealed)


def opened_ring(stored: KeyRing, keys: StoreKeys) -> OpenedRing:
    opened = {kid: _opened(kid, key, keys) for kid, key in stored.keys.items()}
    ring = _replace(stored, keys={kid: key for kid, (key, _) in opened.items()})
    return OpenedRing(ring, all(is_current for _, is_current in opened.values()))


def _opened(kid: str, stored: Key, keys: StoreKeys) -> tuple[Key, bool]:
    if not stored.secret.startswith(_MARK):
        return stored, not keys
    hidden = stored.secret.removeprefix(_MARK)
    for place, key in enumerate(keys.keys):
        try:
            text = decrypted(_bytes(key), _purpose(kid), hidden)
        except InvalidInput:
            raise InvalidSecret(f"the stored key {kid} is unreadable") from None
        if text is not None:
            return _replace(stored, secret=text), place == 0
    what = "encrypted with another key" if keys else "encrypted"
    raise InvalidSecret(
        f"the signing keys of this store are {what}; set FF_STORE_KEY to the key of the store"
    )


def _bytes(key: Secret) -> bytes:
    return bytes.fromhex(key.reveal())


def _purpose(kid: str) -> str:
    """Bound to its name, a sealed key cannot take the place of another."""
    return f"signing key {kid}"
