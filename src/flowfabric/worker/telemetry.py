"""Spans and metrics of a program: a trace leads from the submit to the end."""

import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar, cast

import msgspec

from flowfabric.errors import FlowFabricError
from flowfabric.operations.execution_queries import Ended
from flowfabric.operations.executions import Submission, Submitted
from flowfabric.operations.flows import GraphSubmission, SubmittedGraph
from flowfabric.operations.workers import (
    Claim,
    ClaimOrder,
    ClaimReply,
    ClaimTerms,
    Fail,
    Finish,
    Finished,
    FinishReply,
    GrantClaim,
    Renewal,
    RenewReply,
)
from flowfabric.telemetry.observer import NO_OBSERVER, Observer
from flowfabric.telemetry.traces import TRACEPARENT, Traces, given_parent
from flowfabric.worker.attempts import ClaimedAttempt
from flowfabric.worker.calls import WorkerCalls
from flowfabric.worker.spans import claim_attributes

P = TypeVar("P")


# ---- submits


def traced(port: P) -> P:
    """The port with a span around whatever it submits; the port itself when tracing is off."""
    traces = Traces()
    return cast(P, _Traced(port, traces)) if traces.is_on else port


class _Traced:
    """Puts the trace of the submitter into a tag of what it submits; other calls pass."""

    def __init__(self, inner: Any, traces: Traces) -> None:
        self._inner = inner
        self._traces = traces

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def submit(self, submission: Submission) -> Submitted:
        with self._traces.span("ff.submit", None, _submission_attributes(submission)) as span:
            done: Submitted = await self._inner.submit(self._tagged(submission))
            span.set_attribute("execution_id", done.execution_id)
            return done

    async def call(self, submission: Submission) -> Ended:
        """In two steps, so that the span of the submit does not last until the end."""
        submitted = await self.submit(submission)
        ended: Ended = await self._inner.wait_ended(submitted.execution_id)
        return ended

    async def submit_many(
        self, submissions: Sequence[Submission]
    ) -> list[Submitted | FlowFabricError]:
        with self._traces.span("ff.submit_many", None, {"n": len(submissions)}):
            tagged = [self._tagged(one) for one in submissions]
            done: list[Submitted | FlowFabricError] = await self._inner.submit_many(tagged)
            return done

    async def submit_graph(self, graph: GraphSubmission) -> SubmittedGraph:
        about = {"flow_kind": graph.flow_kind, "n": len(graph.nodes)}
        with self._traces.span("ff.submit_graph", None, about) as span:
            nodes = tuple(
                msgspec.structs.replace(node, tags=self._tags(node.tags)) for node in graph.nodes
            )
            done: SubmittedGraph = await self._inner.submit_graph(
                msgspec.structs.replace(graph, nodes=nodes)
            )
            span.set_attribute("flow_id", done.flow_id)
            return done

    async def submit_child(self, claim: Claim, submission: Submission) -> str:
        with self._traces.span("ff.submit", None, _submission_attributes(submission)) as span:
            child: str = await self._inner.submit_child(claim, self._tagged(submission))
            span.set_attribute("execution_id", child)
            return child

    def _tagged(self, submission: Submission) -> Submission:
        return msgspec.structs.replace(submission, tags=self._tags(submission.tags))

    def _tags(self, given: Mapping[str, object] | None) -> Mapping[str, object]:
        return {TRACEPARENT: self._traces.current(), **(given or {})}


def _submission_attributes(submission: Submission) -> dict[str, str]:
    return {"execution_kind": submission.kind, "lane_id": submission.lane}


# ---- attempts

Batch = Sequence[tuple[ClaimedAttempt, Finish]]
Report = Callable[[Batch, ClaimOrder | None], Coroutine[Any, Any, FinishReply]]
Perform = Callable[[ClaimedAttempt], Coroutine[Any, Any, Finish | None]]


class WorkSpans:
    """Every method costs nothing when tracing is off."""

    def __init__(self) -> None:
        self._traces = Traces()

    def claimed(self, attempt: ClaimedAttempt) -> None:
        """The span of a claim, which is the parent of the attempt's."""
        if not self._traces.is_on:
            return
        claim = attempt.claim
        parent = given_parent(claim.tags.get(TRACEPARENT, ""))
        waited = {"queued_ms": max(0, claim.claimed_at - claim.created_at)}
        span = self._traces.start("ff.claim", parent, claim_attributes(claim) | waited)
        attempt.trace = self._traces.text_of(span)
        span.end()

    def attempts(self, perform: Perform) -> Perform:
        """Perform in a span, the parent of those that the handler opens and of its children. A
        handler that pauses or lost its lease leaves the span without an outcome."""
        if not self._traces.is_on:
            return perform

        async def spanned(attempt: ClaimedAttempt) -> Finish | None:
            about = claim_attributes(attempt.claim)
            with self._traces.span("ff.attempt", attempt.trace, about) as span:
                attempt.trace = self._traces.text_of(span)
                finish = await perform(attempt)
                if finish is not None and isinstance(finish.outcome, Fail):
                    self._traces.fail(span, finish.outcome.category)
                return finish

        return spanned

    def reports(self, report: Report) -> Report:
        """Report how attempts end, each in a span with the answer."""
        if not self._traces.is_on:
            return report

        async def reported(batch: Batch, order: ClaimOrder | None) -> FinishReply:
            spans = [self._finish(attempt, finish) for attempt, finish in batch]
            answers: Sequence[Finished | FlowFabricError] = ()
            try:
                reply = await report(batch, order)
                answers = reply.items
                return reply
            finally:
                for place, span in enumerate(spans):
                    self._answered(span, answers[place] if answers else None)

        return reported

    def _answered(self, span: Any, answer: Finished | FlowFabricError | None) -> None:
        match answer:
            case Finished():
                span.set_attribute("state", answer.state)
            case FlowFabricError():
                self._traces.fail(span, answer.code)
            case None:
                self._traces.fail(span, "unanswered")
        span.end()

    def _finish(self, attempt: ClaimedAttempt, finish: Finish) -> Any:
        name = f"ff.{finish.outcome.__struct_config__.tag}"
        return self._traces.start(name, attempt.trace, claim_attributes(attempt.claim))


@contextmanager
def renewal_spans(traces: Traces, attempts: Sequence[ClaimedAttempt]) -> Iterator[list[Any]]:
    """A span for each lease that is renewed in one call; the answers are put into the list."""
    if not traces.is_on:
        yield []
        return
    spans = [
        traces.start("renew_lease", one.trace, claim_attributes(one.claim)) for one in attempts
    ]
    answers: list[Any] = []
    try:
        yield answers
    finally:
        for place, span in enumerate(spans):
            answer = answers[place] if answers else None
            if answer is None or isinstance(answer, FlowFabricError):
                traces.fail(span, "unanswered" if answer is None else answer.code)
            span.end()


# ---- metrics

# By public state. An attempt that failed and is not over is tried again.
_OUTCOMES: Final = {"completed": "ok", "failed": "error", "cancelled": "cancelled"}
_REMEMBERED: Final = 4_096


def observed_worker(calls: WorkerCalls, observer: Observer) -> WorkerCalls:
    """For a worker of a server: no store in this process reports what it claims and finishes."""
    if observer is NO_OBSERVER:
        return calls
    return cast(WorkerCalls, _Observed(calls, observer))


class _Observed:
    def __init__(self, calls: WorkerCalls, observer: Observer) -> None:
        self._calls = calls
        self._observer = observer
        # By lease: an end is reported with its lane.
        self._lanes: OrderedDict[str, str] = OrderedDict()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._calls, name)

    async def claim(self, order: ClaimOrder) -> ClaimReply | None:
        started = time.perf_counter()
        reply = await self._calls.claim(order)
        self._observer.claimed(order.lanes[0], time.perf_counter() - started)
        self._remember(reply.items if reply else ())
        return reply

    async def claim_granted(self, granted: GrantClaim) -> Claim:
        claim = await self._calls.claim_granted(granted)
        self._remember((claim,))
        return claim

    async def renew(
        self,
        worker_instance_id: str,
        lease_ms: int,
        items: Sequence[Renewal],
        namespace: str = "default",
    ) -> RenewReply:
        reply = await self._calls.renew(worker_instance_id, lease_ms, items, namespace)
        for answer in reply.items:
            self._observer.renewed(not isinstance(answer, FlowFabricError))
        return reply

    async def finish(self, items: Sequence[Finish], next: ClaimTerms | None = None) -> FinishReply:
        reply = await self._calls.finish(items, next)
        for finish, answer in zip(items, reply.items, strict=True):
            if isinstance(answer, Finished) and not answer.replayed:
                self._emit(finish, answer)
        self._remember(reply.claimed)
        return reply

    def _remember(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            self._lanes[claim.lease_id] = claim.lane_id
        while len(self._lanes) > _REMEMBERED:
            self._lanes.popitem(last=False)

    def _emit(self, finish: Finish, answer: Finished) -> None:
        lane, outcome = self._lanes.pop(finish.lease_id, ""), _OUTCOMES.get(answer.state)
        if outcome is not None:
            self._observer.attempted(lane, outcome)
            self._observer.ended(lane, answer.state, None)
        elif isinstance(finish.outcome, Fail):
            self._observer.attempted(lane, "retry")
