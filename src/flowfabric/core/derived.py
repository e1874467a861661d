"""Ids that follow from names, so that a repeat finds what the first call made.

The names can be guessed, so a secret of the store goes into each id: nobody else can create what
an id will stand for before the engine does.
"""

import hmac
from hashlib import sha256
from typing import Final
from uuid import UUID

SECRET_BYTES: Final = 32
# The version of UUIDs whose content is up to whoever makes them, and their variant.
_VERSION: Final = 8 << 76
_VARIANT: Final = 2 << 62
_FREE: Final = ~((15 << 76) | (3 << 62))


def derived_uuid(secret: bytes, what: str, *names: str) -> str:
    """The same for the same names; those of one kind of thing are never those of another."""
    # The lengths keep ("a", "bc") and ("ab", "c") apart.
    texts = [name.encode("utf-8", "surrogatepass") for name in (what, *names)]
    message = b"".join(b"%d:%s" % (len(text), text) for text in texts)
    number = int.from_bytes(hmac.new(secret, message, sha256).digest()[:16], "big")
    return str(UUID(int=number & _FREE | _VERSION | _VARIANT))
