"""The ring of signing keys: cached for reading, changed by compare-and-set."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, Literal, TypeVar

import msgspec

from flowfabric.backend.base import CONFIG_TOPIC, Backend
from flowfabric.backend.optimistic import WRITE_CONFLICT, WriteConflict, decide
from flowfabric.backend.single_flight import SingleFlight
from flowfabric.backend.types import ConfigDocument, ConfigPut
from flowfabric.core.store_keys import NO_KEYS, OpenedRing, StoreKeys, opened_ring, sealed_ring
from flowfabric.core.tokens import (
    FIRST_KID,
    KeyRing,
    Rotation,
    Secret,
    check_secret,
    first_ring,
    is_in_grace,
    is_secret,
    read_ring,
    rotate,
    seed,
    without_stale,
    write_ring,
)
from flowfabric.engine.audit import audit
from flowfabric.engine.permits import Permits
from flowfabric.errors import (
    FlowFabricError,
    HmacSecretNotInitialized,
    TimedOut,
)
from flowfabric.operations import store as declared
from flowfabric.operations.declaration import implements
from flowfabric.operations.store import NewSecret, SecretRotated

_log = logging.getLogger("flowfabric.keys")

DOCUMENT: Final = "keys"
DEFAULT_GRACE_MS: Final = 86_400_000
# A key is kept this long past its grace, so that its tokens are refused as expired, not as forged.
KEPT_PAST_GRACE_MS: Final = 86_400_000
ROTATION_S: Final = 120.0
_FRESH_S: Final = 1.0
_NONE: Final = Secret("")

A = TypeVar("A")
Booted = Literal["installed", "match", "mismatch"]


class Seeded(msgspec.Struct, frozen=True):
    kid: str


class AlreadySeeded(msgspec.Struct, frozen=True):
    kid: str
    same_secret: bool


class VerifyingKid(msgspec.Struct, frozen=True):
    kid: str
    expires_at_ms: int


class Kids(msgspec.Struct, frozen=True):
    """Which keys there are; never their secrets."""

    current_kid: str | None
    verifying: tuple[VerifyingKid, ...]


class Keys:
    """The ring as this process knows it: read again when notified, and at least every second."""

    def __init__(
        self,
        backend: Backend,
        grace_ms: int = DEFAULT_GRACE_MS,
        store_keys: StoreKeys = NO_KEYS,
    ) -> None:
        self._backend = backend
        self._grace_ms = grace_ms
        self._store_keys = store_keys
        self.rotations = Permits("admin_rotate", 1)
        self._subscription = backend.notifier().subscribe(CONFIG_TOPIC)
        self._known: KeyRing | None = None
        self._read_at = 0.0
        self._reading = SingleFlight("reading the key ring", self._read)

    async def ring(self) -> KeyRing:
        """The ring to sign and verify with."""
        is_changed = self._subscription.take()
        stale = time.monotonic() - self._read_at > _FRESH_S
        if is_changed or stale or self._known is None:
            return await self._reading.get()
        return self._known

    async def ring_for(self, kid: str) -> KeyRing:
        """The ring to verify a token of this key with. An unknown key is looked up in the store."""
        ring = await self.ring()
        return ring if kid in ring.keys else await self._reading.get()

    async def boot(self, configured: Secret = _NONE, generated: Secret = _NONE) -> Booted:
        """Install the first key. A stored ring wins over what is configured; without one there
        must be a configured secret, or a generated one where the store keeps it. A ring that is not
        encrypted with the first key of the store yet is stored once more."""
        wanted = check_secret(configured.reveal()) if configured else ""

        def decision(found: OpenedRing, now: int) -> tuple[KeyRing | None, Booted]:
            ring = found.ring
            if ring.current_kid:
                is_same = not wanted or is_secret(ring.keys.get(ring.current_kid), wanted)
                news = None if found.is_as_stored else ring
                return news, "match" if is_same else "mismatch"
            first = wanted or generated.reveal()
            if not first:
                raise HmacSecretNotInitialized("set FF_WAITPOINT_HMAC_SECRET for the first boot")
            return first_ring(FIRST_KID, first, now), "installed"

        found = await self._change(decision)
        if found == "mismatch":
            _log.warning(
                "the configured waitpoint secret is not the stored one, which stays in use;"
                " rotate to change it"
            )
        return found

    async def seed_waitpoint_hmac_secret(self, kid: str, secret_hex: str) -> Seeded | AlreadySeeded:
        """Install the first key by name; repeating it is harmless."""

        def decision(found: OpenedRing, now: int) -> tuple[KeyRing | None, Seeded | AlreadySeeded]:
            seeding = seed(found.ring, kid, secret_hex, now)
            if seeding.ring is None:
                return None, AlreadySeeded(kid, seeding.same_secret)
            return seeding.ring, Seeded(kid)

        return await self._change(decision)

    @implements(declared.Store.rotate_waitpoint_hmac_secret)
    async def rotate(self, new: NewSecret) -> SecretRotated:
        """One at a time, and it ends after a while: repeating is safe."""
        with self.rotations:
            try:
                async with asyncio.timeout(ROTATION_S):
                    await self.rotate_waitpoint_hmac_secret(
                        new.new_kid, new.new_secret_hex, self._grace_ms
                    )
            except TimeoutError as fault:
                event = "waitpoint_hmac_rotation_timeout_http_504"
                audit(event, logging.ERROR, new_kid=new.new_kid, timeout_s=str(ROTATION_S))
                raise TimedOut(
                    "timeout: the rotation may still finish; repeating is safe"
                ) from fault
        return SecretRotated(rotated=1, failed=[], new_kid=new.new_kid)

    async def rotate_waitpoint_hmac_secret(
        self, new_kid: str, new_secret_hex: str, grace_ms: int = DEFAULT_GRACE_MS
    ) -> Rotation:
        """Sign with a new key from now on; tokens of the old one stay valid for the grace."""

        def decision(found: OpenedRing, now: int) -> tuple[KeyRing | None, Rotation]:
            done = rotate(found.ring, new_kid, new_secret_hex, grace_ms, now)
            return done.ring, done

        try:
            rotated = await self._change(decision)
        except FlowFabricError as fault:
            audit("waitpoint_hmac_rotation_failed", logging.ERROR, error=str(fault))
            raise
        previous_kid = "" if rotated.is_noop else rotated.previous_kid
        audit("waitpoint_hmac_rotation_complete", new_kid=new_kid, previous_kid=previous_kid)
        return rotated

    async def rotate_waitpoint_hmac_secret_all(
        self, new_kid: str, new_secret_hex: str, grace_ms: int = DEFAULT_GRACE_MS
    ) -> tuple[Rotation | FlowFabricError, ...]:
        """One entry per ring, and there is one: how it went, or why it did not."""
        try:
            return (await self.rotate_waitpoint_hmac_secret(new_kid, new_secret_hex, grace_ms),)
        except FlowFabricError as fault:
            return (fault,)

    async def list_waitpoint_hmac_kids(self) -> Kids:
        ring, now = await self._reading.get(), await self._backend.now()
        verifying = tuple(
            VerifyingKid(kid, key.expires_at)
            for kid, key in sorted(ring.keys.items())
            if kid != ring.current_kid and is_in_grace(key, now)
        )
        return Kids(ring.current_kid or None, verifying)

    async def drop_stale(self) -> int:
        """Forget keys whose grace is long over; a conflict is left to the next time."""
        found = (await self._backend.config_get([DOCUMENT]))[0]
        if found is None:
            return 0
        ring = self._opened(found).ring
        kept = without_stale(ring, await self._backend.now() - KEPT_PAST_GRACE_MS)
        if kept is ring:
            return 0
        put = ConfigPut(DOCUMENT, found.version, self._written(kept))
        (answer,) = await self._backend.config_put([put])
        if not answer.applied:
            return 0
        self._keep(kept)
        return len(ring.keys) - len(kept.keys)

    async def close(self) -> None:
        self._subscription.close()
        await self._reading.close()

    async def _read(self) -> KeyRing:
        (found,) = await self._backend.config_get([DOCUMENT])
        return self._keep(self._opened(found).ring)

    def _opened(self, found: ConfigDocument | None) -> OpenedRing:
        return opened_ring(read_ring(found.body) if found else KeyRing(), self._store_keys)

    def _written(self, ring: KeyRing) -> bytes:
        return write_ring(sealed_ring(ring, self._store_keys))

    def _keep(self, ring: KeyRing) -> KeyRing:
        self._known, self._read_at = ring, time.monotonic()
        return ring

    async def _change(self, decision: Callable[[OpenedRing, int], tuple[KeyRing | None, A]]) -> A:
        """Decide from the stored ring and write the changed one; a conflicting write is retried."""

        async def attempt() -> A | WriteConflict:
            (found,) = await self._backend.config_get([DOCUMENT])
            now = await self._backend.now()
            news, answer = decision(self._opened(found), now)
            if news is None:
                return answer
            put = ConfigPut(DOCUMENT, found.version if found else 0, self._written(news))
            if not (await self._backend.config_put([put]))[0].applied:
                return WRITE_CONFLICT
            self._keep(news)
            return answer

        return await decide("document", DOCUMENT, attempt)
