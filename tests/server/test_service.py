"""Health, metrics and the documents the server gives of itself."""

import logging
import re

import jsonschema_rs
import pytest
from prometheus_client.parser import text_string_to_metric_families

from flowfabric.core.policy import decode_policy
from flowfabric.errors import TransportFault
from flowfabric.server.openapi import document_of
from flowfabric.server.routes import ROUTES
from tests.server.conftest import Serve
from tests.server.driving import Served


async def figures(served: Served) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every sample by its name and the values of its labels."""
    answer = await served.call("GET /metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        (sample.name, tuple(sorted(sample.labels.values()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


async def test_requests_are_counted_by_their_template(served: Served) -> None:
    await served.submit()
    await served.refused("GET /v1/executions/nonsense")
    await served.refused("GET /nowhere")
    await served.call("FROBNICATE /v1/executions")
    await served.call("GET /metrics")
    found = await figures(served)
    requests = {
        frozenset(labels): value
        for (name, labels), value in found.items()
        if name == "ff_http_requests_total"
    }
    assert requests == {
        frozenset({"/v1/executions", "201", "POST"}): 1,
        frozenset({"/v1/executions/{execution_id}", "400", "GET"}): 1,
        frozenset({"unknown", "404", "GET"}): 1,
        frozenset({"/v1/executions", "405", "OTHER"}): 1,
    }


async def test_attempts_and_ends_are_counted_by_lane(served: Served) -> None:
    held = await served.held()
    await served.done(
        "POST /v1/worker/renew",
        {"worker_instance_id": "pool-1", "lease_ms": 5_000, "items": [held]},
    )
    await served.finish(held, complete={})
    held = await served.held()
    await served.finish(held, fail={"reason": "x", "category": "permanent"})
    await served.submit()
    found = await figures(served)
    assert found["ff_attempt_outcome_total", ("default", "ok")] == 1
    assert found["ff_attempt_outcome_total", ("default", "error")] == 1
    assert found["ff_executions_terminal_total", ("completed", "default")] == 1
    assert found["ff_execution_e2e_seconds_count", ("default",)] == 2
    assert found["ff_lease_renewal_total", ("ok",)] == 1
    assert found["ff_completion_events_total", ("success",)] == 1
    assert found["ff_queue_depth", ("default", "waiting")] == 1
    assert found["ff_claim_from_grant_duration_seconds_count", ("default",)] == 2


async def test_a_full_pool_is_counted(serve: Serve) -> None:
    served = await serve(max_sse_streams=1)
    served.application.services.sse.__enter__()
    feed = {"accept": "text/event-stream"}
    assert (await served.call("GET /v1/events", headers=feed)).status_code == 429
    found = await figures(served)
    assert found["ff_stream_ops_rejected_total", ("sse_streams",)] == 1
    assert found["ff_sse_streams_open", ()] == 1
    served.application.services.sse.__exit__(None, None, None)


async def test_metrics_can_be_turned_off(serve: Serve) -> None:
    served = await serve(serves_metrics=False)
    assert await served.refused("GET /metrics") == (404, "not_found")


async def test_a_store_that_does_not_answer_is_not_healthy(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)

    async def fail() -> None:
        raise TransportFault("connection lost", context="ping")

    monkeypatch.setattr(served.application.services.engine.deps.store.backend, "ping", fail)
    health = await served.call("GET /healthz")
    assert health.status_code == 503
    assert (
        health.json()["error"]
        == "backend (ping): The connection to the store failed or broke: try again."
    )
    ready = await served.call("GET /readyz")
    assert (ready.status_code, ready.json()["failing"]) == (503, ["store"])


async def test_a_server_tells_what_its_store_is_and_may_be_asked_for(served: Served) -> None:
    told = await served.done("GET /v1/capabilities")
    assert told["partitions"] == await served.done("GET /v1/partitions")
    assert told["priority_range"] == [0, 9_000]
    assert told["now"] > 0
    assert told["limits"]["items_per_batch"] == 200
    assert told["limits"]["claims_per_call"] == 100
    assert told["limits"]["large_body_bytes"] == 1_048_576
    assert told["limits"]["journal_entries"] == 10_000
    assert told["limits"]["frame_bytes"] == told["limits"]["signal_bytes"] == 65_536
    assert told["limits"]["claim_reply_bytes"] == 4_194_304
    assert told["interface"] == 1
    facts = {"family", "library_version", "server_version", "layout", "durability", "wakeup"}
    assert facts | {"spread", "lane_order", "event_order", "transactional_submit"} <= set(told)


async def test_the_page_loads_nothing_from_elsewhere(served: Served) -> None:
    answer = await served.call("GET /docs")
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", answer.text)


def test_the_document_has_every_route_and_resolves_every_reference() -> None:
    document = document_of(ROUTES)
    described = {
        (method.upper(), path) for path, methods in document["paths"].items() for method in methods
    }
    assert described == {(route.method, route.path) for route in ROUTES}
    references = set(re.findall(r"'#/components/schemas/([^']+)'", str(document)))
    assert references <= set(document["components"]["schemas"])
    operations = [
        one["operationId"] for methods in document["paths"].values() for one in methods.values()
    ]
    assert len(operations) == len(set(operations))
    assert all(one["summary"] for methods in document["paths"].values() for one in methods.values())


@pytest.mark.parametrize("backoff", [{}, {"type": None}, {"initial_delay_ms": 5}])
def test_the_document_knows_that_a_backoff_without_type_is_exponential(
    backoff: dict[str, object],
) -> None:
    policy = {"retry_policy": {"backoff": backoff}}
    described = {"$ref": "#/components/schemas/ExecutionPolicy", **document_of(ROUTES)}
    jsonschema_rs.validate(described, policy)
    assert decode_policy(policy).retry_policy is not None


async def test_what_nobody_expected_is_a_bug_without_its_insides(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("secret inside")

    monkeypatch.setattr(served.application.services.engine.reads, "count", fail)
    answer = await served.call("GET /v1/executions/count")
    assert answer.status_code == 500
    assert answer.json() == {"error": "bug", "kind": "bug", "retryable": False}
    assert "secret inside" in caplog.text
