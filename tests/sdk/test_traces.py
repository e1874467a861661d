"""One trace from the submit through the claim and the attempt to its end, in every home."""

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from flowfabric import Context, FlowFabric, SyncContext
from flowfabric.telemetry.traces import TRACEPARENT
from flowfabric.worker.layers import Tracing

Family = dict[str, str]
"""Names of spans -> those of their parents."""


class Spans:
    def __init__(self, kept: InMemorySpanExporter, provider: TracerProvider) -> None:
        self._kept = kept
        self.tracer = provider.get_tracer("test")

    def finished(self) -> tuple[ReadableSpan, ...]:
        return self._kept.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        """The spans of this program, the server's own left out."""
        return [
            span
            for span in self.finished()
            if span.name == name and "http.route" not in (span.attributes or {})
        ]

    def family(self, trace_id: int) -> Family:
        """Of one trace the spans of this program, the server's own left out."""
        spans = [one for one in self.finished() if one.context and one.context.trace_id == trace_id]
        names = {one.context.span_id: one.name for one in spans if one.context}
        return {
            one.name: names[one.parent.span_id] if one.parent else ""
            for one in spans
            if "http.route" not in (one.attributes or {})
        }


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield Spans(kept, provider)
    provider.shutdown()


def trace_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


# The spans must be set up before the fabric opens.
@pytest.fixture
def traced(spans: Spans, fabric: FlowFabric) -> FlowFabric:
    return fabric


async def test_a_trace_goes_from_the_submit_to_the_finish(spans: Spans, traced: FlowFabric) -> None:
    @traced.task
    async def work(ctx: Context) -> str:
        with spans.tracer.start_as_current_span("mine"):
            return str(ctx.info.tags[TRACEPARENT])

    async with traced.worker():
        with spans.tracer.start_as_current_span("caller"):
            run = await work.submit()
        given = await run.result(timeout="20s")
    (submitted,) = spans.named("ff.submit")
    assert spans.family(trace_id(submitted)) == {
        "caller": "",
        "ff.submit": "caller",
        "ff.claim": "ff.submit",
        "ff.attempt": "ff.claim",
        "mine": "ff.attempt",
        "ff.complete": "ff.attempt",
    }
    assert submitted.context is not None
    assert given.split("-")[2] == format(submitted.context.span_id, "016x")
    (attempt,) = spans.named("ff.attempt")
    assert attempt.attributes is not None
    assert attempt.attributes["execution_id"] == run.id
    assert attempt.attributes["attempt_index"] == 0


async def test_retries_and_children_belong_to_the_same_trace(
    spans: Spans, traced: FlowFabric
) -> None:
    @traced.task
    def child(ctx: SyncContext) -> str:
        return str(trace.get_current_span().get_span_context().trace_id)

    @traced.task(retries=1, backoff="1ms")
    async def parent(ctx: Context) -> str:
        if ctx.info.attempt_index == 0:
            raise OSError("not yet")
        return await ctx.call(child)

    async with traced.worker():
        found = await parent.call()
    first, _ = spans.named("ff.submit")
    assert int(found) == trace_id(first)
    assert {trace_id(one) for one in spans.named("ff.attempt")} == {trace_id(first)}
    (failed,) = spans.named("ff.fail")
    assert trace_id(failed) == trace_id(first)
    attempt = next(one for one in spans.named("ff.attempt") if not one.status.is_ok)
    assert attempt.status.description == "handler_error"


async def test_a_flow_is_one_trace(spans: Spans, traced: FlowFabric) -> None:
    @traced.task
    async def add(a: int, b: int) -> int:
        return a + b

    flow = traced.flow()
    last = flow.add(add, flow.add(add, 1, 2), 3)
    async with traced.worker():
        assert await (await flow.submit()).result(last, timeout="20s") == 6
    (submitted,) = spans.named("ff.submit_graph")
    attempts = spans.named("ff.attempt")
    assert [trace_id(one) for one in attempts] == [trace_id(submitted)] * 2


async def test_the_tracing_layer_is_a_span_around_every_call(
    spans: Spans, traced: FlowFabric
) -> None:
    traced.layer(Tracing())
    run = await traced.submit("k")
    await run.cancel()
    calls = [one.attributes["method"] for one in spans.named("ff_sdk.backend") if one.attributes]
    assert calls == ["submit", "cancel"]
    (submitted,) = spans.named("ff.submit")
    assert spans.family(trace_id(submitted))["ff.submit"] == "ff_sdk.backend"


async def test_without_a_provider_there_are_no_spans_and_no_tag(fabric: FlowFabric) -> None:
    @fabric.task
    async def work(ctx: Context) -> dict[str, str]:
        return dict(ctx.info.tags)

    async with fabric.worker():
        assert await work.call() == {}
