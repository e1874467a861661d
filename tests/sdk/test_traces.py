"""One trace from the submit through the claim and the attempt to its end, in every home."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from flowfabric import Context, FlowFabric, SyncContext
from flowfabric.core.ids import partition_of
from flowfabric.telemetry.traces import TRACEPARENT
from flowfabric.worker.layers import Tracing
from flowfabric.worker.renewals import Renewals
from flowfabric.worker.worker_options import registration_of

Family = dict[str, str]
"""Names of spans -> those of their parents."""


class Spans:
    def __init__(self, kept: InMemorySpanExporter, provider: TracerProvider) -> None:
        self._kept = kept
        self.tracer = provider.get_tracer("test")

    def finished(self) -> tuple[ReadableSpan, ...]:
        return self._kept.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        """The spans of this program, those of the engine left out."""
        return [span for span in self.finished() if span.name == name and not is_engines(span)]

    def of_engine(self, name: str) -> list[Mapping[str, object]]:
        """The attributes of an operation's spans."""
        return [
            span.attributes or {}
            for span in self.finished()
            if span.name == name and is_engines(span)
        ]

    def family(self, trace_id: int) -> Family:
        """Of one trace the spans of this program, those of the engine left out."""
        spans = [one for one in self.finished() if one.context and one.context.trace_id == trace_id]
        names = {one.context.span_id: one.name for one in spans if one.context}
        return {
            one.name: names[one.parent.span_id] if one.parent else ""
            for one in spans
            if not is_engines(one)
        }


def is_engines(span: ReadableSpan) -> bool:
    return "backend" in (span.attributes or {})


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


async def test_a_step_is_a_span_around_what_it_does(spans: Spans, traced: FlowFabric) -> None:
    async def charge() -> str:
        with spans.tracer.start_as_current_span("mine"):
            return "paid"

    async def refuse() -> None:
        raise OSError("no")

    @traced.task(retries=1, backoff="1ms")
    async def work(ctx: Context) -> str:
        paid = await ctx.step("charge", charge)
        if ctx.info.attempt_index == 0:
            raise OSError("not yet")
        with suppress(OSError):
            await ctx.step("refuse", refuse)
        return paid

    async with traced.worker():
        run = await work.submit()
        assert await run.result(timeout="20s") == "paid"
    charged, refused = spans.named("ff.step")
    # The second attempt takes it from the journal.
    assert len(spans.named("ff.attempt")) == 2
    assert charged.attributes is not None
    told = {name: charged.attributes[name] for name in ("execution_id", "step", "seq")}
    assert told == {"execution_id": run.id, "step": "charge", "seq": 1}
    assert (charged.status.is_ok, refused.status.is_ok) == (True, False)
    family = spans.family(trace_id(charged))
    assert (family["mine"], family["ff.step"]) == ("ff.step", "ff.attempt")


async def test_a_renewal_is_a_span_for_each_lease(spans: Spans, traced: FlowFabric) -> None:
    run = await traced.submit("k")
    lost = await traced.submit("k")
    async with traced.claimer(permits=2) as claimer:
        held = await claimer.claim(2)
        calls = (await traced.open()).worker
        options = claimer.options
        attempts = [task.attempt for task in held]
        await traced.admin.revoke_lease(lost.id)
        renewals = Renewals(calls, registration_of(options), options.lease_ms, lambda: attempts)
        await renewals.renew()
        for task in held:
            task.drop()
    found = {
        str(about["execution_id"]): (about["lease_epoch"], span.status)
        for span in spans.named("renew_lease")
        if (about := span.attributes) is not None
    }
    assert (found[run.id][0], found[run.id][1].is_ok) == (1, True)
    assert found[lost.id][1].description == "lease_revoked"


async def test_every_operation_of_the_engine_is_a_span_with_its_ids(
    spans: Spans, traced: FlowFabric
) -> None:
    run = await traced.submit("k")
    budget = await traced.budget("llm", hard={"tokens": 10})
    await traced.admin.describe_budget(budget.id)
    async with traced.claimer() as claimer:
        task = await claimer.claim_next()
        assert task is not None
        issued = await task.create_pending_waitpoint("key", "1h")
        await task.complete()
    await (await traced.submit("k")).cancel(reason="a secret of mine")
    # The span of a server ends behind its answer.
    async with asyncio.timeout(20):
        while not spans.of_engine("ff.cancel"):  # noqa: ASYNC110
            await asyncio.sleep(0)
    ((described,), (asked,), (finished,), (cancelled,)) = (
        spans.of_engine(f"ff.{name}")
        for name in ("describe_budget", "create_waitpoint", "finish", "cancel")
    )
    assert described["budget_id"] == budget.id
    assert asked["execution_id"] == run.id
    assert asked["lease_epoch"] == 1
    assert asked["partition"] == partition_of(run.id)
    everything = str([dict(one.attributes or {}) for one in spans.finished()])
    assert issued.waitpoint_token.reveal() not in everything
    assert "a secret of mine" not in everything
    backends = {one["backend"] for one in (described, asked, finished, cancelled)}
    assert backends <= {"sqlite", "memory", "postgres", "valkey"}
    assert len(backends) == 1


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
