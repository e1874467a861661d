"""Submitting whole graphs, and building flows piece by piece."""

from typing import Final

import msgspec

from flowfabric.engine.flow_types import NewEdge, StagedEdge
from flowfabric.engine.graph_types import GraphEdge, GraphGroup, GraphNode, GraphSubmission
from flowfabric.errors import (
    Conflict,
    CycleDetected,
    DependencyAlreadyExists,
    DownstreamTerminal,
    ExecutionAlreadyInFlow,
    ExecutionNotEligible,
    ExecutionNotFound,
    ExecutionNotInFlow,
    FlowAlreadyTerminal,
    FlowNotFound,
    GraphTooLargeForCycleCheck,
    InvalidCapabilities,
    InvalidDependency,
    InvalidPolicyJson,
    InvalidTagKey,
    LaneNotAccepting,
    PartitionMismatch,
    SelfReferencingEdge,
    StaleGraphRevision,
)
from flowfabric.server.call import Call
from flowfabric.server.replies import Reply, created, ok
from flowfabric.server.route import SUBMIT, SUBMIT_OR_WORKER, Routes
from flowfabric.wire import flows as wire
from flowfabric.wire.executions import TagCount
from flowfabric.wire.scalars import to_bytes

routes: Final = Routes()

_EDITS: Final = (FlowNotFound, FlowAlreadyTerminal)


# ---- submit


@routes.add(
    "POST /v1/flows:submit",
    SUBMIT,
    {201: wire.SubmitAnswer, 200: wire.SubmitAnswer},
    CycleDetected,
    SelfReferencingEdge,
    DependencyAlreadyExists,
    PartitionMismatch,
    LaneNotAccepting,
    FlowAlreadyTerminal,
    ExecutionAlreadyInFlow,
    Conflict,
    InvalidCapabilities,
    InvalidPolicyJson,
    body_class="batch",
)
async def submit_flow(call: Call[wire.SubmitFlow, None]) -> Reply:
    """Create a whole graph; a repeat under its key or id answers the same flow."""
    asked = call.body
    call.caller.need_namespace(asked.namespace)
    if asked.flow_id:
        await call.need_new_flow(asked.flow_id)
    done = await call.engine.graphs.submit_graph(
        GraphSubmission(
            nodes=tuple(_node(one) for one in asked.nodes),
            edges=tuple(_edge(one) for one in asked.edges),
            groups=tuple(GraphGroup(one.target, one.policy) for one in asked.groups),
            flow_kind=asked.flow_kind,
            namespace=asked.namespace,
            flow_id=asked.flow_id or "",
            idempotency_key=asked.idempotency_key,
            creator=call.caller.name,
            tags=asked.tags,
        )
    )
    told = wire.SubmittedFlow(
        flow_id=done.flow_id,
        graph_revision=done.graph_revision,
        executions=dict(done.executions),
    )
    if done.is_new:
        return created(wire.SubmitAnswer(submitted=told))
    return ok(wire.SubmitAnswer(already_submitted=told))


def _node(asked: wire.Node) -> GraphNode:
    policy = asked.policy
    return GraphNode(
        name=asked.name,
        lane=asked.lane_id,
        kind=asked.execution_kind,
        input=to_bytes(asked.input_payload),
        payload_encoding=asked.payload_encoding,
        priority=asked.priority,
        policy=None if isinstance(policy, msgspec.UnsetType) else bytes(policy),
        tags=asked.tags,
        delay_until=asked.delay_until,
        deadline_at=asked.execution_deadline_at,
        execution_id=asked.execution_id or "",
    )


def _edge(asked: wire.Arrow) -> GraphEdge:
    return GraphEdge(
        source=asked.source,
        target=asked.target,
        edge_id=asked.edge_id or "",
        dependency_kind=asked.dependency_kind,
        data_passing_ref=asked.data_passing_ref,
    )


# ---- build


@routes.add(
    "POST /v1/flows",
    SUBMIT_OR_WORKER,
    {201: wire.CreateFlowAnswer, 200: wire.CreateFlowAnswer},
    Conflict,
)
async def create_flow(call: Call[wire.CreateFlow, None]) -> Reply:
    """Create an empty flow."""
    asked = call.body
    call.caller.need_namespace(asked.namespace)
    flow_id = asked.flow_id or call.engine.deps.mint()
    await call.need_new_flow(flow_id)
    done = await call.engine.flows.create_flow(flow_id, asked.flow_kind, asked.namespace)
    told = wire.FlowId(flow_id=done.flow_id)
    if done.is_new:
        return created(wire.CreateFlowAnswer(created=told))
    return ok(wire.CreateFlowAnswer(already_satisfied=told))


@routes.add(
    "POST /v1/flows/{flow_id}/members",
    SUBMIT_OR_WORKER,
    {201: wire.MemberAnswer, 200: wire.MemberAnswer},
    *_EDITS,
    ExecutionNotFound,
    ExecutionAlreadyInFlow,
    PartitionMismatch,
)
async def add_member(call: Call[wire.AddMember, None]) -> Reply:
    """Make an execution a member."""
    asked, flow_id = call.body, call.path["flow_id"]
    call.require_same("flow_id", asked.flow_id)
    await call.need_flow(flow_id)
    await call.need_execution(asked.execution_id)
    done = await call.engine.flows.add_member(flow_id, asked.execution_id)
    if done.is_new:
        added = wire.Added(execution_id=done.execution_id, new_node_count=done.node_count)
        return created(wire.MemberAnswer(added=added))
    already = wire.AlreadyMember(execution_id=done.execution_id, node_count=done.node_count)
    return ok(wire.MemberAnswer(already_member=already))


@routes.add(
    "POST /v1/flows/{flow_id}/edges",
    SUBMIT,
    {201: wire.StageAnswer},
    *_EDITS,
    SelfReferencingEdge,
    DependencyAlreadyExists,
    StaleGraphRevision,
    ExecutionNotInFlow,
    DownstreamTerminal,
    CycleDetected,
    GraphTooLargeForCycleCheck,
    ExecutionNotEligible,
)
async def stage_edge(call: Call[wire.StageEdge, None]) -> Reply:
    """Put an edge beside the graph; with `apply` it counts at once."""
    asked, flow_id = call.body, call.path["flow_id"]
    call.require_same("flow_id", asked.flow_id)
    await call.need_flow(flow_id)
    done = await call.engine.flows.stage_edge(
        NewEdge(
            flow_id=flow_id,
            edge_id=asked.edge_id,
            upstream=asked.upstream_execution_id,
            downstream=asked.downstream_execution_id,
            dependency_kind=asked.dependency_kind,
            data_passing_ref=asked.data_passing_ref,
            created_by=call.caller.name,
        ),
        asked.expected_graph_revision,
        apply=asked.apply,
    )
    staged = wire.Staged(
        edge_id=done.edge_id,
        new_graph_revision=done.graph_revision,
        unsatisfied_count=done.unsatisfied_count,
    )
    return created(wire.StageAnswer(staged=staged))


@routes.add(
    "POST /v1/flows/{flow_id}/edges/apply",
    SUBMIT,
    {200: wire.ApplyAnswer},
    FlowAlreadyTerminal,
    ExecutionNotFound,
    ExecutionAlreadyInFlow,
    InvalidDependency,
    ExecutionNotEligible,
)
async def apply_edge(call: Call[wire.ApplyEdge, None]) -> Reply:
    """Make a staged edge count: its downstream waits for it from now on."""
    asked, flow_id = call.body, call.path["flow_id"]
    call.require_same("flow_id", asked.flow_id)
    await call.need_flow(flow_id)
    done = await call.engine.flows.apply_edge(
        StagedEdge(
            flow_id=flow_id,
            edge_id=asked.edge_id,
            downstream=asked.downstream_execution_id,
            upstream=asked.upstream_execution_id,
            dependency_kind=asked.dependency_kind,
            data_passing_ref=asked.data_passing_ref,
        )
    )
    if done == "AlreadyApplied":
        return ok(done)
    applied = wire.Unsatisfied(unsatisfied_count=done.unsatisfied_count)
    return ok(wire.Applied(applied=applied))


@routes.add(
    "PUT /v1/flows/{flow_id}/members/{execution_id}/edge-policy",
    SUBMIT,
    {200: wire.PolicySet},
    *_EDITS,
    ExecutionNotInFlow,
)
async def set_edge_policy(call: Call[wire.SetEdgePolicy, None]) -> Reply:
    """Say how a member's inbound edges combine, before the first of them is applied."""
    asked, flow_id = call.body, call.path["flow_id"]
    call.require_same("flow_id", asked.flow_id)
    await call.need_flow(flow_id)
    await call.need_execution(call.execution_id)
    given = {"kind": asked.kind, "k": asked.k, "on_satisfied": asked.on_satisfied}
    policy = {name: value for name, value in given.items() if value is not None}
    return ok(await call.engine.flows.set_edge_group_policy(flow_id, call.execution_id, policy))


@routes.add(
    "PUT /v1/flows/{flow_id}/tags",
    SUBMIT,
    {200: wire.FlowTagsAnswer},
    FlowNotFound,
    InvalidTagKey,
)
async def set_flow_tags(call: Call[wire.SetFlowTags, None]) -> Reply:
    """Write tags over those that are there."""
    flow_id = call.path["flow_id"]
    call.require_same("flow_id", call.body.flow_id)
    await call.need_flow(flow_id)
    count = await call.engine.flows.set_flow_tags(flow_id, call.body.tags)
    return ok(wire.FlowTagsAnswer(updated=TagCount(count=count)))
