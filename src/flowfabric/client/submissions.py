"""Submissions as a server wants them, and its answers as an engine gives them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from flowfabric.engine.graph_types import GraphEdge, GraphNode, GraphSubmission, GraphSubmitted
from flowfabric.errors import ConfigError, MalformedResponse
from flowfabric.wire import executions as wire
from flowfabric.wire import flows

# Of the server's limits for one body: what bytes become as base64, and some room for the rest.
MOST_BYTES: Final = 5 * 1024 * 1024
_ITEM_BYTES: Final = 1_024


def chunks(sizes: Sequence[int], most: int = wire.MOST_BATCHED) -> Iterator[slice]:
    """Cut a batch so that no piece has too many items or too many bytes."""
    start, weight = 0, 0
    for place, size in enumerate(sizes):
        weight += size + _ITEM_BYTES
        if place > start and (place - start == most or weight > MOST_BYTES):
            yield slice(start, place)
            start, weight = place, size + _ITEM_BYTES
    if sizes:
        yield slice(start, len(sizes))


def flow_of(graph: GraphSubmission) -> flows.SubmitFlow:
    return flows.SubmitFlow(
        flow_kind=graph.flow_kind,
        nodes=[_node(one) for one in graph.nodes],
        edges=tuple(_arrow(one) for one in graph.edges),
        groups=tuple(flows.Combine(target=g.target, policy=_built(g.policy)) for g in graph.groups),
        namespace=graph.namespace,
        flow_id=graph.flow_id or None,
        idempotency_key=graph.idempotency_key,
        tags=tags_of(graph.tags),
    )


def graph_of(told: flows.SubmitAnswer) -> GraphSubmitted:
    done = told.submitted or told.already_submitted
    if done is None:
        raise MalformedResponse("a flow that is neither submitted nor known")
    is_new = told.submitted is not None
    return GraphSubmitted(done.flow_id, done.graph_revision, done.executions, is_new)


def _node(node: GraphNode) -> flows.Node:
    return flows.Node(
        name=node.name,
        lane_id=node.lane,
        execution_kind=node.kind,
        execution_id=node.execution_id or None,
        input_payload=node.input,
        payload_encoding=node.payload_encoding,
        priority=node.priority,
        policy=policy_of(node.policy),
        tags=tags_of(node.tags),
        delay_until=node.delay_until,
        execution_deadline_at=node.deadline_at,
    )


def _arrow(edge: GraphEdge) -> flows.Arrow:
    return flows.Arrow(
        source=edge.source,
        target=edge.target,
        edge_id=edge.edge_id or None,
        dependency_kind=edge.dependency_kind,
        data_passing_ref=edge.data_passing_ref,
    )


def _built(policy: object) -> dict[str, object]:
    built = msgspec.to_builtins(policy)
    if not isinstance(built, dict):
        raise ConfigError("policy: expected an edge policy")
    return built


def tags_of(tags: Mapping[str, object] | None) -> dict[str, str] | None:
    """As they were given: whether values are texts is for the engine to say."""
    return None if tags is None else dict(tags)  # type: ignore[arg-type]


def policy_of(policy: bytes | str | Mapping[str, object] | None) -> msgspec.Raw | msgspec.UnsetType:
    if policy is None or policy in ("", b""):
        return msgspec.UNSET
    if isinstance(policy, bytes | str):
        return msgspec.Raw(policy if isinstance(policy, bytes) else policy.encode())
    try:
        return msgspec.Raw(msgspec.json.encode(policy))
    except TypeError as fault:
        raise ConfigError(f"policy: {fault}") from None
