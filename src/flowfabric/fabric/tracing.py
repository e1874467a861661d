"""What is submitted takes the submitter's trace along, in a tag."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec

from flowfabric.errors import FlowFabricError
from flowfabric.operations.execution_queries import Ended
from flowfabric.operations.executions import Submission, Submitted
from flowfabric.operations.flows import GraphSubmission, SubmittedGraph
from flowfabric.operations.workers import Claim
from flowfabric.telemetry.traces import TRACEPARENT, Traces

P = TypeVar("P")


def traced(port: P) -> P:
    """The port, with a span around whatever it submits; as it is while nobody traces."""
    traces = Traces()
    return cast(P, _Traced(port, traces)) if traces.is_on else port


class _Traced:
    """Of a port only what submits; the rest is handed on."""

    def __init__(self, inner: Any, traces: Traces) -> None:
        self._inner = inner
        self._traces = traces

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def submit(self, submission: Submission) -> Submitted:
        with self._traces.span("ff.submit", None, _about(submission)) as span:
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
        with self._traces.span("ff.submit", None, _about(submission)) as span:
            child: str = await self._inner.submit_child(claim, self._tagged(submission))
            span.set_attribute("execution_id", child)
            return child

    def _tagged(self, submission: Submission) -> Submission:
        return msgspec.structs.replace(submission, tags=self._tags(submission.tags))

    def _tags(self, given: Mapping[str, object] | None) -> Mapping[str, object]:
        return {TRACEPARENT: self._traces.current(), **(given or {})}


def _about(submission: Submission) -> dict[str, str]:
    return {"execution_kind": submission.kind, "lane_id": submission.lane}
