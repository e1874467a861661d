"""Authenticated encryption of short texts with the standard library, and the cursors sealed by it.

The tag is a MAC over purpose and text, and the text is encrypted with a key stream that the tag and
the key give, so that equal texts are encrypted equally and no nonce is needed (a synthetic IV).
"""

import hashlib
import hmac
from typing import Final

from flowfabric.core.pages import from_text, to_text
from flowfabric.core.tokens import KeyRing, current_secret, same_bytes
from flowfabric.errors import InvalidInput

_TAG_BYTES: Final = 16
_BLOCK_BYTES: Final = 32


def encrypted(secret: bytes, purpose: str, text: str) -> str:
    tag = _tag(secret, purpose, text.encode())
    return to_text(tag + _streamed(secret, tag, text.encode()))


def decrypted(secret: bytes, purpose: str, sealed: str) -> str | None:
    """The text; None when it was not encrypted with this key for this purpose."""
    raw = from_text(sealed)
    tag, hidden = raw[:_TAG_BYTES], raw[_TAG_BYTES:]
    text = _streamed(secret, tag, hidden)
    return text.decode() if same_bytes(tag, _tag(secret, purpose, text)) else None


def seal(ring: KeyRing, purpose: str, text: str) -> str:
    """A cursor that only the holders of the key ring can read or make: a list may stop at something
    that its caller may not see, and the cursor names it."""
    return encrypted(current_secret(ring), purpose, text)


def unseal(ring: KeyRing, purpose: str, sealed: str) -> str:
    """Any key of the ring may have sealed it: a list goes on after a rotation."""
    for key in ring.keys.values():
        secret = bytes.fromhex(key.secret)
        text = decrypted(secret, purpose, sealed) if secret else None
        if text is not None:
            return text
    raise InvalidInput("cursor: malformed")


def _tag(secret: bytes, purpose: str, text: bytes) -> bytes:
    return _mac(secret, b"cursor tag\0%b\0%b" % (purpose.encode(), text))[:_TAG_BYTES]


def _streamed(secret: bytes, tag: bytes, text: bytes) -> bytes:
    """XOR with the key stream: what encrypts also decrypts."""
    blocks = range(-(-len(text) // _BLOCK_BYTES))
    stream = b"".join(
        _mac(secret, b"cursor key\0%b%b" % (tag, block.to_bytes(4, "big"))) for block in blocks
    )
    return bytes(one ^ other for one, other in zip(text, stream, strict=False))


def _mac(secret: bytes, message: bytes) -> bytes:
    return hmac.new(secret, message, hashlib.sha256).digest()
