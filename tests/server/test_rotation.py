"""Rotating the signing key over REST."""

import asyncio
import logging
from typing import Any

import pytest

from flowfabric.core.tokens import MOST_KEYS
from flowfabric.engine.suspensions import keys as engine_keys
from flowfabric.operations.store import NewSecret, Store
from tests.server.driving import Served

LINE = "POST /v1/admin/rotate-waitpoint-secret"
SECRET = "a1" * 32
OTHER = "b2" * 32


async def test_a_rotation_is_repeated_and_refused(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    body = {"new_kid": "k2", "new_secret_hex": SECRET}
    expected = {"rotated": 1, "failed": [], "new_kid": "k2"}
    assert await served.done(LINE, body) == expected
    assert await served.done(LINE, body) == expected
    conflict = {"new_kid": "k2", "new_secret_hex": OTHER}
    assert await served.refused(LINE, conflict) == (409, "rotation_conflict")
    kids = await served.application.services.engine.keys.list_waitpoint_hmac_kids()
    assert kids.current_kid == "k2"
    (previous,) = kids.verifying
    grace = served.application.services.settings.waitpoint_grace_ms
    now = await served.application.services.engine.deps.store.backend.now()
    assert 0 < previous.expires_at_ms - now <= grace
    told = [record.getMessage() for record in caplog.records if record.name == "flowfabric.audit"]
    assert any("waitpoint_hmac_rotation_complete" in line and "k2" in line for line in told)
    assert any("waitpoint_hmac_rotation_failed" in line for line in told)
    assert SECRET not in caplog.text
    assert OTHER not in caplog.text


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"new_kid": "a:b"}, "invalid_kid"),
        ({"new_kid": ""}, "invalid_kid"),
        ({"new_secret_hex": ""}, "invalid_secret_hex"),
        ({"new_secret_hex": "abc"}, "invalid_secret_hex"),
        ({"new_secret_hex": "zz" * 32}, "invalid_secret_hex"),
        ({"new_secret_hex": "a1b2c3"}, "invalid_secret_hex"),
    ],
)
async def test_a_bad_key_is_refused_and_not_shown(
    served: Served, fields: dict[str, Any], kind: str
) -> None:
    body = {"new_kid": "k2", "new_secret_hex": SECRET, **fields}
    answer = await served.call(LINE, body)
    assert (answer.status_code, answer.json()["kind"]) == (400, kind)
    assert not body["new_secret_hex"] or body["new_secret_hex"] not in answer.text


async def test_too_many_keys_within_their_grace_are_429(served: Served) -> None:
    for number in range(MOST_KEYS - 1):
        body = {"new_kid": f"n{number}", "new_secret_hex": f"{number:064x}"}
        assert (await served.call(LINE, body)).status_code == 200
    answer = await served.call(LINE, {"new_kid": "more", "new_secret_hex": SECRET})
    assert (answer.status_code, answer.json()["kind"]) == (429, "resource_exhausted")
    assert "within their grace" in answer.json()["error"]
    assert int(answer.headers["retry-after"]) > 3_600


async def test_one_rotation_at_a_time(served: Served) -> None:
    with served.application.services.engine.keys.rotations:
        answer = await served.call(LINE, {"new_kid": "k2", "new_secret_hex": SECRET})
    assert (answer.status_code, answer.json()["kind"]) == (429, "resource_exhausted")
    assert "too many concurrent admin_rotate calls (server max: 1)" in answer.json()["error"]
    assert int(answer.headers["retry-after"]) >= 1
    await served.done(LINE, {"new_kid": "k2", "new_secret_hex": SECRET})


async def test_a_rotation_that_takes_too_long_says_that_repeating_is_safe(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def forever(*_: object) -> None:
        await asyncio.Event().wait()

    keys = served.application.services.engine.keys
    monkeypatch.setattr(keys, "rotate_waitpoint_hmac_secret", forever)
    monkeypatch.setattr(engine_keys, "ROTATION_S", 0.01)
    answer = await served.call(LINE, {"new_kid": "k2", "new_secret_hex": SECRET})
    assert answer.status_code == 504
    assert "repeating is safe" in answer.json()["error"]
    assert "waitpoint_hmac_rotation_timeout_http_504" in caplog.text
    assert SECRET not in caplog.text


def test_a_rotation_body_hides_its_secret() -> None:
    body = Store.rotate_waitpoint_hmac_secret.body
    assert body is not None
    for kind in (NewSecret, body):
        new = kind(new_kid="k", new_secret_hex=SECRET)
        assert SECRET not in repr(new)
        assert SECRET not in str(new.__rich_repr__())
