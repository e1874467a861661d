"""Signals, waitpoints and approvals over REST."""

import base64
import logging
from typing import Any
from uuid import uuid4

import pytest

from tests.server.conftest import Serve
from tests.server.driving import Served
from tests.server.samples import EXECUTION, UUID
from tests.server.tokens import bearer, token

EVERY_BYTE = bytes(range(256))


def suspend(held: dict[str, Any], *names: str, **changes: Any) -> dict[str, Any]:
    condition = {"condition_type": "signal_set", "required_signal_names": list(names)}
    return {
        **held,
        "op": str(uuid4()),
        "waitpoints": [{"type": "fresh"}],
        "resume_condition": condition,
        "reason_code": "waiting_for_signal",
        **changes,
    }


async def suspended(served: Served, *names: str) -> tuple[str, dict[str, Any]]:
    """An execution that waits for signals, and its waitpoint."""
    held = await served.held()
    answer = await served.call("POST /v1/worker/suspend", suspend(held, *names))
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    (waitpoint,) = answer.json()["waitpoints"]
    return held["execution_id"], waitpoint


def signal(waitpoint: dict[str, Any], name: str = "go", **changes: Any) -> dict[str, Any]:
    return {
        "waitpoint_id": waitpoint["waitpoint_id"],
        "waitpoint_token": waitpoint["waitpoint_token"],
        "signal_id": str(uuid4()),
        "signal_name": name,
        "signal_category": "default",
        "source_type": "external",
        "source_identity": "test",
        "target_scope": "waitpoint",
        **changes,
    }


async def test_a_signal_resumes_and_its_payload_arrives_as_it_was_sent(served: Served) -> None:
    own, waitpoint = await suspended(served, "go")
    sent = signal(waitpoint, payload=base64.b64encode(EVERY_BYTE).decode())
    accepted = await served.done(f"POST /v1/executions/{own}/signal", sent)
    assert (accepted["outcome"], accepted["effect"]) == (
        "accepted",
        "resume_condition_satisfied",
    )
    repeated = await served.done(f"POST /v1/executions/{own}/signal", sent)
    assert repeated == {"outcome": "duplicate", "existing_signal_id": sent["signal_id"]}
    claimed = await served.claim()
    assert claimed["attempt_type"] == "resumed"
    assert claimed["resumed_by"]["how"] == "signal"
    found = await served.done(f"GET /v1/executions/{own}/resume-signals?attempt_index=0")
    assert found["resumed_by"] == "signal"
    assert base64.b64decode(found["signals"][0]["payload"]) == EVERY_BYTE


async def test_a_bad_token_reveals_nothing(served: Served) -> None:
    own, waitpoint = await suspended(served, "go")
    path = f"POST /v1/executions/{own}/signal"
    good = waitpoint["waitpoint_token"]
    tampered = good[:-1] + ("0" if good[-1] != "0" else "1")
    for bad in (tampered, "nonsense", "k9:" + "0" * 64):
        refused = await served.refused(path, signal(waitpoint, waitpoint_token=bad))
        assert refused == (400, "invalid_token")
    elsewhere = signal(waitpoint, waitpoint_id=UUID)
    assert await served.refused(path, elsewhere) == (400, "invalid_token")


async def test_an_oversized_payload_is_refused(served: Served) -> None:
    own, waitpoint = await suspended(served, "go")
    large = base64.b64encode(b"x" * 65_537).decode()
    sent = signal(waitpoint, payload=large)
    assert await served.refused(f"POST /v1/executions/{own}/signal", sent) == (
        413,
        "payload_too_large",
    )


@pytest.mark.parametrize(("given", "kind"), [(5, "int"), ([], "array"), ({}, "object")])
async def test_a_token_that_is_no_text_is_malformed(
    given: object, kind: str, served: Served
) -> None:
    own, waitpoint = await suspended(served, "go")
    sent = signal(waitpoint) | {"waitpoint_token": given}
    answer = await served.call(f"POST /v1/executions/{own}/signal", sent)
    assert (answer.status_code, answer.json()["kind"]) == (422, "invalid_json")
    assert f"waitpoint_token: expected str, got {kind}" in answer.json()["error"]


async def test_open_waitpoints_show_a_fingerprint_and_never_the_token(served: Served) -> None:
    own, waitpoint = await suspended(served, "go")
    answer = await served.call(f"GET /v1/executions/{own}/pending-waitpoints")
    (shown,) = answer.json()["items"]
    assert len(shown["token_fingerprint"]) == 16
    assert shown["required_signal_names"] == ["go"]
    assert waitpoint["waitpoint_token"] not in answer.text
    assert "next_cursor" not in answer.json()


async def test_waitpoints_come_in_pages(served: Served) -> None:
    held = await served.held()
    made = []
    for _ in range(3):
        answer = await served.call("POST /v1/worker/waitpoints", {**held, "expires_in_ms": 60_000})
        assert answer.status_code == 201
        assert answer.headers["cache-control"] == "no-store"
        made.append(answer.json()["waitpoint_id"])
    path = f"GET /v1/executions/{held['execution_id']}/pending-waitpoints"
    first = await served.done(f"{path}?limit=2")
    rest = await served.done(f"{path}?limit=2&after={first['next_cursor']}")
    assert [one["waitpoint_id"] for one in first["items"] + rest["items"]] == sorted(made)


async def test_a_person_approves_without_a_token_and_leaves_a_trace(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flowfabric.audit")
    own, waitpoint = await suspended(served, "approved")
    path = f"POST /v1/executions/{own}/waitpoints/{waitpoint['waitpoint_id']}/approve"
    nobody = {"signal_name": "approved", "source_identity": ""}
    assert await served.refused(path, nobody) == (400, "invalid_input")
    answer = await served.call(path, {"signal_name": "approved", "source_identity": "ann"})
    assert answer.json()["effect"] == "resume_condition_satisfied"
    assert waitpoint["waitpoint_token"] not in answer.text
    (trace,) = [one for one in caplog.records if getattr(one, "audit", "") == "approval_delivered"]
    assert "ann" in trace.getMessage()
    assert waitpoint["waitpoint_token"] not in caplog.text


async def test_approving_nothing_is_not_found(served: Served) -> None:
    body = {"signal_name": "approved", "source_identity": "ann"}
    path = f"POST /v1/executions/{EXECUTION}/waitpoints/{UUID}/approve"
    assert await served.refused(path, body) == (404, "execution_not_found")
    own = await served.submit()
    path = f"POST /v1/executions/{own}/waitpoints/{UUID}/approve"
    assert await served.refused(path, body) == (404, "waitpoint_not_found")


async def test_a_token_is_read_by_operators_who_show_who_they_are(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    served = await serve(tokens=(token("boss", "admin"),))
    served.headers = bearer("boss")
    own, waitpoint = await suspended(served, "go")
    path = f"GET /v1/executions/{own}/waitpoints/{waitpoint['waitpoint_id']}/token"
    answer = await served.call(path)
    assert answer.json() == {"token": waitpoint["waitpoint_token"]}
    assert answer.headers["cache-control"] == "no-store"
    assert any(getattr(one, "audit", "") == "waitpoint_token_read" for one in caplog.records)
    assert waitpoint["waitpoint_token"] not in caplog.text
    missing = await served.call(f"GET /v1/executions/{own}/waitpoints/{UUID}/token")
    assert missing.status_code == 404
    assert missing.headers["cache-control"] == "no-store"
    assert missing.json()["error"] == (
        "waitpoint token not found (consumed, expired, or unknown id)"
    )


async def test_signals_that_came_early_keep_the_lease(served: Served) -> None:
    held = await served.held()
    made = await served.done("POST /v1/worker/waitpoints", {**held, "expires_in_ms": 60_000})
    own = held["execution_id"]
    early = await served.done(f"POST /v1/executions/{own}/signal", signal(made))
    assert early["effect"] == "buffered_for_pending_waitpoint"
    pending = [{"type": "pending", "waitpoint_id": made["waitpoint_id"]}]
    done = await served.done("POST /v1/worker/suspend", suspend(held, "go", waitpoints=pending))
    assert done["outcome"] == "already_satisfied"
    assert done["signals"][0]["signal_name"] == "go"
    assert await served.finish(held, complete={}) == {"ok": {"state": "completed"}}


async def test_a_repeated_suspend_has_the_first_answer(served: Served) -> None:
    held = await served.held()
    body = suspend(held, "go")
    first = await served.done("POST /v1/worker/suspend", body)
    assert await served.done("POST /v1/worker/suspend", body) == first


async def test_a_suspend_without_the_lease_is_refused(served: Served) -> None:
    held = await served.held()
    wrong = suspend({**held, "lease_epoch": 9}, "go")
    assert await served.refused("POST /v1/worker/suspend", wrong) == (409, "stale_lease")
    bare = suspend({"execution_id": held["execution_id"]}, "go")
    assert await served.refused("POST /v1/worker/suspend", bare) == (400, "fence_required")
    both = suspend(held, "go", waitpoints=[{"type": "fresh", "pending": {"waitpoint_id": UUID}}])
    assert await served.refused("POST /v1/worker/suspend", both) == (422, "invalid_json")


async def test_an_operator_resumes(served: Served) -> None:
    own, _ = await suspended(served, "never")
    assert await served.done(f"POST /v1/executions/{own}/resume") == {
        "outcome": "resumed",
        "public_state": "waiting",
    }
