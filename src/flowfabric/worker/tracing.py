"""The spans of a worker: one trace from the submit through the claim and the attempt to its end."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from flowfabric.errors import FlowFabricError
from flowfabric.operations.workers import Claim, ClaimOrder, Fail, Finish, Finished, FinishReply
from flowfabric.telemetry.traces import TRACEPARENT, Traces, given_parent
from flowfabric.worker.attempts import ClaimedAttempt

Batch = Sequence[tuple[ClaimedAttempt, Finish]]
Report = Callable[[Batch, ClaimOrder | None], Coroutine[Any, Any, FinishReply]]
Perform = Callable[[ClaimedAttempt], Coroutine[Any, Any, Finish | None]]


class WorkSpans:
    """Every method costs nothing while nobody traces."""

    def __init__(self) -> None:
        self._traces = Traces()

    def claimed(self, attempt: ClaimedAttempt) -> None:
        """Work came in; what is done with it belongs below this."""
        if not self._traces.is_on:
            return
        claim = attempt.claim
        parent = given_parent(claim.tags.get(TRACEPARENT, ""))
        waited = {"queued_ms": max(0, claim.claimed_at - claim.created_at)}
        span = self._traces.start("ff.claim", parent, _about(claim) | waited)
        attempt.trace = self._traces.text_of(span)
        span.end()

    def attempts(self, perform: Perform) -> Perform:
        """Perform in a span; those the handler opens and children it submits join in. Nothing is
        said of a handler that pauses or lost its lease."""
        if not self._traces.is_on:
            return perform

        async def traced(attempt: ClaimedAttempt) -> Finish | None:
            with self._traces.span("ff.attempt", attempt.trace, _about(attempt.claim)) as span:
                attempt.trace = self._traces.text_of(span)
                finish = await perform(attempt)
                if finish is not None and isinstance(finish.outcome, Fail):
                    self._traces.fail(span, finish.outcome.category)
                return finish

        return traced

    def reports(self, report: Report) -> Report:
        """Report how attempts end, each in a span that says what was answered."""
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
        return self._traces.start(name, attempt.trace, _about(attempt.claim))


def _about(claim: Claim) -> dict[str, Any]:
    about = {
        "execution_id": claim.execution_id,
        "execution_kind": claim.execution_kind,
        "lane_id": claim.lane_id,
        "attempt_id": claim.attempt_id,
        "attempt_index": claim.attempt_index,
        "lease_epoch": claim.lease_epoch,
    }
    return about | {"flow_id": claim.flow_id} if claim.flow_id else about
