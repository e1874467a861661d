"""A trace goes from the submitter to the worker, with a span of the server between if it traces."""

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.server.conftest import Serve
from tests.server.driving import Served

ID = "0af7651916cd43dd8448eb211c80319c"
GIVEN = {"traceparent": f"00-{ID}-b7ad6b7169203331-01"}
BODY = {"lane_id": "default", "execution_kind": "k"}


async def test_without_a_provider_the_callers_trace_is_handed_on(served: Served) -> None:
    await served.done("POST /v1/executions", BODY, headers=GIVEN)
    assert (await served.claim())["tags"] == GIVEN


@pytest.mark.parametrize("bad", ["", "nonsense", "00-xyz-1-01", GIVEN["traceparent"] + "0"])
async def test_what_is_no_trace_is_left_out(bad: str, served: Served) -> None:
    await served.done("POST /v1/executions", BODY, headers={"traceparent": bad})
    assert (await served.claim())["tags"] == {}


async def test_with_a_provider_every_request_is_a_span(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    served = await serve()
    await served.done("POST /v1/executions", BODY, headers=GIVEN)
    await served.refused("GET /v1/executions/nonsense")
    created, refused = kept.get_finished_spans()
    assert (created.name, refused.name) == ("ff.submit", "ff.describe_execution")
    assert created.context is not None
    assert format(created.context.trace_id, "032x") == ID
    assert created.attributes is not None
    assert created.attributes["http.response.status_code"] == 201
    assert refused.attributes is not None
    assert refused.attributes["http.route"] == "/v1/executions/{execution_id}"
    handed = (await served.claim())["tags"]["traceparent"]
    assert handed == f"00-{ID}-{format(created.context.span_id, '016x')}-01"
    provider.shutdown()
