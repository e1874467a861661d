"""The secret of a store, from which ids are derived. It is never shown."""

import secrets
from typing import Final

import msgspec

from flowfabric.backend.base import Backend
from flowfabric.backend.single_flight import SingleFlight
from flowfabric.backend.types import ConfigPut
from flowfabric.core.derived import SECRET_BYTES
from flowfabric.errors import Corruption

DOCUMENT: Final = "secret"


class _Document(msgspec.Struct, frozen=True):
    hex: str


_decode: Final = msgspec.json.Decoder(_Document).decode


class StoreSecret:
    """Made by whoever needs it first, then the same for ever and for all processes: without it
    nothing would meet itself again. So it is kept with the store and moves with it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._known = b""
        self._reading = SingleFlight("reading the secret of the store", self._read)

    async def get(self) -> bytes:
        return self._known or await self._reading.get()

    async def close(self) -> None:
        await self._reading.close()

    async def _read(self) -> bytes:
        (found,) = await self._backend.config_get([DOCUMENT])
        if found is None:
            made = msgspec.json.encode(_Document(secrets.token_hex(SECRET_BYTES)))
            # Of two processes that make one, the first wins.
            (answer,) = await self._backend.config_put([ConfigPut(DOCUMENT, 0, made)])
            found = answer.document
        self._known = _secret_in(found.body)
        return self._known


def _secret_in(body: bytes) -> bytes:
    try:
        secret = bytes.fromhex(_decode(body).hex)
    except (msgspec.MsgspecError, ValueError):
        secret = b""
    if len(secret) < SECRET_BYTES:
        raise Corruption(f"{DOCUMENT}: the secret of the store cannot be read; restore a backup")
    return secret
