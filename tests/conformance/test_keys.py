"""The key ring: first boot, seeding, rotation, upkeep, and several processes with one ring."""

import asyncio
import time

import msgspec
import pytest

from flowfabric.backend.base import Backend
from flowfabric.backend.types import ConfigPut
from flowfabric.core.store_keys import parse_store_keys
from flowfabric.core.tokens import Rotation, Secret, read_ring, write_ring
from flowfabric.duties.maintenance import Retention
from flowfabric.engine import engine_on
from flowfabric.engine.suspensions.keys import (
    AlreadySeeded,
    Keys,
    Kids,
    Seeded,
    VerifyingKid,
)
from flowfabric.errors import (
    HmacSecretNotInitialized,
    InvalidInput,
    InvalidKid,
    InvalidSecret,
    InvalidToken,
    RotationConflict,
    TokenExpired,
)
from flowfabric.operations.store import Store
from tests.clock import VirtualClock
from tests.conformance.driver import Driver, refused
from tests.conformance.waiting import pause
from tests.moves import deliver_signal
from tests.proofs import proves

A, B, C = "aa" * 32, "bb" * 32, "cc" * 32
DAY_MS = 86_400_000


async def rotated(keys: Keys, kid: str, secret: str, grace_ms: int) -> tuple[str, int, bool]:
    done = await keys.rotate_waitpoint_hmac_secret(kid, secret, grace_ms)
    return done.previous_kid, done.gc_count, done.is_noop


@pytest.fixture
async def keys(backend: Backend) -> Keys:
    """The keys of a store where nothing has booted yet."""
    return Keys(backend)


# ---- boot


async def test_the_first_boot_installs_the_configured_secret(keys: Keys) -> None:
    assert await keys.boot(Secret(A), Secret(B)) == "installed"
    assert await keys.list_waitpoint_hmac_kids() == Kids("k1", ())
    assert await keys.boot(Secret(A)) == "match"
    assert await keys.boot(Secret(A.upper())) == "match"


async def test_without_one_a_generated_secret_is_kept(keys: Keys) -> None:
    assert await keys.boot(generated=Secret(A)) == "installed"
    assert await keys.boot(generated=Secret(B)) == "match"
    assert await keys.boot(Secret(A)) == "match"


async def test_a_stored_secret_wins_and_one_warning_says_so(
    keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    await keys.boot(Secret(A))
    assert await keys.boot(Secret(B)) == "mismatch"
    (warning,) = caplog.records
    assert warning.levelname == "WARNING"
    assert "rotate" in warning.getMessage()
    assert A not in caplog.text
    assert B not in caplog.text


async def test_a_store_for_many_needs_a_secret_for_its_first_boot(keys: Keys) -> None:
    with refused(HmacSecretNotInitialized):
        await keys.boot()
    await keys.boot(Secret(A))
    assert await keys.boot() == "match"


async def test_a_bad_secret_stops_the_boot(keys: Keys) -> None:
    with refused(InvalidInput) as caught:
        await keys.boot(Secret("secret"))
    assert 'secret"' not in repr(caught.value)
    assert await keys.list_waitpoint_hmac_kids() == Kids(None, ())


async def test_of_two_boots_at_once_one_installs(backend: Backend) -> None:
    one, two = Keys(backend), Keys(backend)
    booted = await asyncio.gather(one.boot(generated=Secret(A)), two.boot(generated=Secret(B)))
    assert sorted(booted) == ["installed", "match"]
    assert await one.ring() == await two.ring()


# ---- seeding


async def test_a_seed_installs_once(keys: Keys) -> None:
    seed = keys.seed_waitpoint_hmac_secret
    assert await seed("mine", A) == Seeded("mine")
    assert await seed("mine", A) == AlreadySeeded("mine", True)
    assert await seed("mine", B) == AlreadySeeded("mine", False)
    with refused(InvalidInput) as caught:
        await seed("other", A)
    assert "rotate" in caught.value.detail
    with refused(InvalidInput):
        await seed("", A)
    with refused(InvalidInput):
        await seed("mine", A[:-2])


# ---- rotation


@proves(Store.rotate_waitpoint_hmac_secret)
async def test_a_rotation_is_repeated_refused_and_undone(keys: Keys, clock: VirtualClock) -> None:
    await keys.boot(Secret(A))
    rotate = keys.rotate_waitpoint_hmac_secret
    assert await rotated(keys, "k2", B, 1_000) == ("k1", 0, False)
    assert (await rotated(keys, "k2", B, 1_000))[2]
    with refused(RotationConflict, "k2"):
        await rotate("k2", C, 1_000)
    with refused(RotationConflict, "k1"):
        await rotate("k1", C, 1_000)
    assert await keys.list_waitpoint_hmac_kids() == Kids(
        "k2", (VerifyingKid("k1", clock() + 1_000),)
    )
    assert await rotated(keys, "k1", A, 500) == ("k2", 0, False)
    assert await keys.list_waitpoint_hmac_kids() == Kids("k1", (VerifyingKid("k2", clock() + 500),))
    clock.advance(501)
    assert await keys.list_waitpoint_hmac_kids() == Kids("k1", ())
    assert await rotated(keys, "k3", C, 0) == ("k1", 1, False)


async def test_a_rotation_of_all_rings_has_one_answer(keys: Keys) -> None:
    await keys.boot(Secret(A))
    rotate = keys.rotate_waitpoint_hmac_secret_all
    (done,) = await rotate("k2", B)
    assert isinstance(done, Rotation)
    assert (done.new_kid, done.previous_kid, done.is_noop) == ("k2", "k1", False)
    (again,) = await rotate("k2", B)
    assert isinstance(again, Rotation)
    assert again.is_noop
    (fault,) = await rotate("k2", C)
    assert isinstance(fault, RotationConflict)


async def test_rotations_leave_a_trace_without_secrets(
    keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "flowfabric.audit")
    await keys.boot(Secret(A))
    await keys.rotate_waitpoint_hmac_secret("k2", B)
    with pytest.raises(InvalidKid):
        await keys.rotate_waitpoint_hmac_secret("k:3", C)
    done, failed = caplog.records
    assert (done.levelname, failed.levelname) == ("INFO", "ERROR")
    assert done.getMessage() == ("waitpoint_hmac_rotation_complete new_kid='k2' previous_kid='k1'")
    assert failed.getMessage().startswith("waitpoint_hmac_rotation_failed error='invalid_kid")
    assert not {A, B, C} & set(caplog.text.split("'"))


async def test_no_rendering_of_the_ring_shows_a_secret(keys: Keys, backend: Backend) -> None:
    await keys.boot(Secret(A))
    stored = await backend.config_get(["keys"])
    assert stored[0] is not None
    assert A.encode() in stored[0].body
    put = ConfigPut("keys", 1, stored[0].body)
    answers = await backend.config_put([put])
    assert A not in repr((await keys.ring(), stored, put, answers))


# ---- several processes


async def test_a_token_of_a_key_another_process_rotated_to_is_taken_at_once(
    driver: Driver, backend: Backend
) -> None:
    elsewhere = engine_on(backend)
    await elsewhere.keys.ring()
    await driver.engine.keys.rotate_waitpoint_hmac_secret("k2", B)
    paused = await pause(driver)
    assert paused.at().waitpoint_token.kid == "k2"
    await deliver_signal(elsewhere, paused.request())
    await elsewhere.close()
    assert await paused.state() == "waiting"


async def test_an_unknown_key_is_looked_up_before_it_is_refused(
    driver: Driver, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Notifications may be lost, and a ring that was read just now may be old."""
    elsewhere = engine_on(backend)
    old = await elsewhere.keys.ring()
    monkeypatch.setattr(elsewhere.keys._subscription, "take", lambda: False)
    await driver.engine.keys.rotate_waitpoint_hmac_secret("k2", B)
    assert await elsewhere.keys.ring() == old
    paused = await pause(driver)
    await deliver_signal(elsewhere, paused.request())
    assert "k2" in (await elsewhere.keys.ring()).keys
    await elsewhere.close()


async def test_a_ring_is_read_again_after_a_second(
    driver: Driver, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = engine_on(backend)
    old = await elsewhere.keys.ring()
    monkeypatch.setattr(elsewhere.keys._subscription, "take", lambda: False)
    await driver.engine.keys.rotate_waitpoint_hmac_secret("k2", B)
    assert await elsewhere.keys.ring() == old
    started = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: started + 1.001)
    assert (await elsewhere.keys.ring()).current_kid == "k2"
    await elsewhere.close()


# ---- upkeep


async def test_a_key_past_its_grace_is_told_from_a_forged_one_for_a_day(driver: Driver) -> None:
    paused = await pause(driver)
    retention = Retention(driver.engine)
    await driver.engine.keys.rotate_waitpoint_hmac_secret("k2", B, 5_000)
    driver.clock.advance(5_001)
    await retention.visit()
    with refused(TokenExpired):
        await paused.send()
    driver.clock.advance(DAY_MS - 1)
    await retention.visit()
    with refused(TokenExpired):
        await paused.send()
    driver.clock.advance(1)
    assert (await retention.visit()).of("retention_trimmer") == 1
    with refused(InvalidToken):
        await paused.send()
    driver.clock.advance(10 * DAY_MS)
    await retention.visit()
    assert await driver.engine.keys.list_waitpoint_hmac_kids() == Kids("k2", ())


async def test_upkeep_without_a_ring_or_with_a_tidy_one_writes_nothing(
    keys: Keys, backend: Backend
) -> None:
    assert await keys.drop_stale() == 0
    await keys.boot(Secret(A))
    assert await keys.drop_stale() == 0
    (stored,) = await backend.config_get(["keys"])
    assert stored is not None
    assert stored.version == 1


# ---- encrypted at rest

FIRST, SECOND = "1f" * 32, "2e" * 40


async def stored_ring(backend: Backend) -> bytes:
    (found,) = await backend.config_get(["keys"])
    assert found is not None
    return found.body


def keys_with(backend: Backend, *texts: str) -> Keys:
    return Keys(backend, store_keys=parse_store_keys(",".join(texts)))


async def test_signing_keys_are_encrypted_with_the_key_of_the_store(backend: Backend) -> None:
    keys = keys_with(backend, FIRST)
    assert await keys.boot(Secret(A)) == "installed"
    await keys.rotate_waitpoint_hmac_secret("k2", B, DAY_MS)
    stored = await stored_ring(backend)
    assert A.encode() not in stored
    assert B.encode() not in stored
    other = keys_with(backend, FIRST)
    ring = await other.ring()
    assert {kid: key.secret for kid, key in ring.keys.items()} == {"k1": A, "k2": B}
    assert await other.boot(Secret(B)) == "match"
    assert await stored_ring(backend) == stored


async def test_a_wrong_or_missing_key_of_the_store_is_one_error(backend: Backend) -> None:
    await keys_with(backend, FIRST).boot(Secret(A))
    stored = await stored_ring(backend)
    with pytest.raises(InvalidSecret, match="are encrypted; set FF_STORE_KEY"):
        await Keys(backend).boot(Secret(A))
    with pytest.raises(InvalidSecret, match="encrypted with another key; set FF_STORE_KEY"):
        await keys_with(backend, SECOND).boot(Secret(A))
    with refused(InvalidSecret):
        await Keys(backend).rotate_waitpoint_hmac_secret("k2", B, DAY_MS)
    assert await stored_ring(backend) == stored


async def test_a_boot_encrypts_what_was_stored_in_the_clear(backend: Backend) -> None:
    await Keys(backend).boot(Secret(A))
    assert A.encode() in await stored_ring(backend)
    assert await keys_with(backend, FIRST).boot() == "match"
    assert A.encode() not in await stored_ring(backend)


async def test_a_key_of_the_store_is_replaced_without_a_pause(backend: Backend) -> None:
    old = keys_with(backend, FIRST)
    await old.boot(Secret(A))
    # First every server learns the new key, then the new one encrypts, then the old one goes.
    ready = keys_with(backend, FIRST, SECOND)
    await ready.boot()
    await keys_with(backend, SECOND, FIRST).boot()
    assert (await ready.list_waitpoint_hmac_kids()).current_kid == "k1"
    assert (await keys_with(backend, SECOND).ring()).keys["k1"].secret == A
    with refused(InvalidSecret):
        await old.list_waitpoint_hmac_kids()


async def test_a_sealed_key_cannot_stand_for_another_one(backend: Backend) -> None:
    keys = keys_with(backend, FIRST)
    await keys.boot(Secret(A))
    await keys.rotate_waitpoint_hmac_secret("k2", B, DAY_MS)
    ring = read_ring(await stored_ring(backend))
    (found,) = await backend.config_get(["keys"])
    assert found is not None
    swapped = msgspec.structs.replace(ring, keys={"k1": ring.keys["k2"], "k2": ring.keys["k1"]})
    await backend.config_put([ConfigPut("keys", found.version, write_ring(swapped))])
    with refused(InvalidSecret):
        await keys_with(backend, FIRST).ring()
