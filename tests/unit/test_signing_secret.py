"""Where the signing secret comes from, and that settings do not show it."""

from pathlib import Path

import pytest

from flowfabric.app import open_engine
from flowfabric.config import Settings, StoreUrl, settings_from
from flowfabric.core.tokens import KeyRing, Secret
from flowfabric.errors import InvalidInput

CONFIGURED = "0123456789abcdef" * 4


async def ring_of(settings: Settings) -> KeyRing:
    """The ring of a process that has just booted, and ended again."""
    engine = await open_engine(settings)
    try:
        return await engine.keys.ring()
    finally:
        await engine.close()
        await engine.deps.store.backend.close()


def test_the_environment_may_name_a_secret_and_its_grace() -> None:
    settings = settings_from(
        {"FF_WAITPOINT_HMAC_SECRET": CONFIGURED, "FF_WAITPOINT_HMAC_GRACE_MS": "5000"}
    )
    assert settings.waitpoint_secret == Secret(CONFIGURED)
    assert settings.waitpoint_grace_ms == 5_000
    assert CONFIGURED not in repr(settings)


def test_without_one_there_is_none() -> None:
    settings = settings_from({})
    assert not settings.waitpoint_secret
    assert settings.waitpoint_grace_ms == 86_400_000


@pytest.mark.parametrize("secret", ["abc", "zz" * 32, "ab" * 15])
def test_a_bad_secret_is_refused_without_being_shown(secret: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        settings_from({"FF_WAITPOINT_HMAC_SECRET": secret})
    assert caught.value.detail.startswith("invalid value for FF_WAITPOINT_HMAC_SECRET: ")
    assert secret not in caught.value.detail.replace("FF_WAITPOINT_HMAC_SECRET", "")


async def test_a_file_keeps_the_secret_it_was_given_at_its_first_boot(tmp_path: Path) -> None:
    store = StoreUrl("sqlite", str(tmp_path / "own.db"))
    first = await ring_of(Settings(store=store))
    assert first.current_kid == "k1"
    assert len(first.keys["k1"].secret) == 64
    assert await ring_of(Settings(store=store)) == first
    assert await ring_of(Settings(store=store, waitpoint_secret=Secret(CONFIGURED))) == first


async def test_every_store_of_ones_own_has_a_secret_of_its_own() -> None:
    settings = Settings(store=StoreUrl("memory"))
    one, other = await ring_of(settings), await ring_of(settings)
    assert one != other


async def test_a_configured_secret_is_installed(tmp_path: Path) -> None:
    store = StoreUrl("sqlite", str(tmp_path / "own.db"))
    ring = await ring_of(Settings(store=store, waitpoint_secret=Secret(CONFIGURED)))
    assert ring.keys["k1"].secret == CONFIGURED
