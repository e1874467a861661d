"""What a key ring refuses, and what a damaged one answers."""

import pytest

from flowfabric.backend.base import Backend
from flowfabric.backend.types import ConfigPut
from flowfabric.errors import FlowFabricError, InvalidGraceMs, InvalidSecret, InvalidSecretHex
from tests.conformance.driver import Driver
from tests.conformance.waiting import pause

GOOD = "bb" * 32


@pytest.mark.parametrize(
    ("secret", "grace_ms", "error"),
    [
        ("", 0, InvalidSecretHex),
        ("abc", 0, InvalidSecretHex),
        ("zz" * 32, 0, InvalidSecretHex),
        (GOOD, -1, InvalidGraceMs),
        (GOOD, 2**53, InvalidGraceMs),
        (GOOD, True, InvalidGraceMs),
    ],
)
async def test_a_rotation_with_bad_input_changes_nothing(
    driver: Driver, secret: str, grace_ms: int, error: type[FlowFabricError]
) -> None:
    keys = driver.engine.keys
    before = await keys.ring()
    with pytest.raises(error):
        await keys.rotate_waitpoint_hmac_secret("k2", secret, grace_ms)
    assert await keys.ring() == before


async def test_a_damaged_secret_signs_nothing(driver: Driver, backend: Backend) -> None:
    ring = await driver.engine.keys.ring()
    (stored,) = await backend.config_get(["keys"])
    assert stored is not None
    secret = ring.keys[ring.current_kid].secret.encode()
    damaged = stored.body.replace(secret, b"z" * len(secret))
    assert damaged != stored.body
    await backend.config_put([ConfigPut("keys", stored.version, damaged)])
    with pytest.raises(InvalidSecret):
        await pause(driver)
