"""What editors and operators do to a flow: from what was read to the plan that changes it."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from flowfabric.core.edge_policies import EdgePolicy
from flowfabric.core.graph import CancelPolicy, Edge, Flow, GraphEdit, Group, judge, resolved_edges
from flowfabric.core.plan import Event, FlowGuard, FlowPlan, Guard, Plan, Require
from flowfabric.core.record import Record
from flowfabric.core.rules.operators import at_version, change
from flowfabric.core.states import LIMIT_REASONS, LIVE

ABANDONED: Final = "submit_abandoned"
_LIVE: Final = Guard(frozenset[str](LIVE))

_replace = msgspec.structs.replace


def join(flow_id: str, record: Record, create: Flow | None = None) -> FlowPlan:
    """Make an execution a member of a flow, and the flow with it if it is to be made too."""
    member = change(record, "join", flow_id=flow_id)
    return FlowPlan(flow_id=flow_id, rule="join", create=create, members=(member,))


def stage(edge: Edge, group: Group | None, revision: int) -> FlowPlan:
    """Stage an edge: it is counted, but nobody waits for it yet."""
    before = group or Group(target=edge.target, flow_id=edge.flow_id)
    after = _replace(before, staged=before.staged + 1)
    staged = _replace(edge, state="staged", round=before.round)
    return FlowPlan(
        flow_id=edge.flow_id,
        rule="stage",
        guard=FlowGuard(graph_revision=revision),
        requires=(Require(edge.target, _LIVE),),
        graph=GraphEdit(edges=(staged,), groups=(after,), seen={edge.target: group}),
    )


def link(
    edge: Edge, group: Group | None, downstream: Record, revision: int | None = None
) -> FlowPlan:
    """Make an edge count, be it staged already or new: its downstream waits for it from now on."""
    before = group or Group(target=edge.target, flow_id=edge.flow_id)
    was_staged = edge.state == "staged" and group is not None and edge.round == group.round
    after = _rearmed(
        _replace(before, n=before.n + 1, staged=before.staged - (1 if was_staged else 0))
    )
    waits = after.state == "pending"
    unresolved = after.n - resolved_edges(after)
    waiting = _await_edge(downstream, f"{unresolved} dep(s) unresolved incl {edge.edge_id}")
    counted = _replace(edge, state="open", round=before.round)
    return FlowPlan(
        flow_id=edge.flow_id,
        rule="link",
        guard=FlowGuard(graph_revision=revision),
        requires=() if waits else (Require(edge.target, at_version(downstream)),),
        members=(waiting,) if waits else (),
        graph=GraphEdit(edges=(counted,), groups=(after,), seen={edge.target: group}),
    )


def _rearmed(group: Group) -> Group:
    """A group that was satisfied waits again if one more edge takes that from it."""
    if group.state != "satisfied" or judge(group) == "satisfied":
        return group
    return _replace(group, state="pending", fired_at=0, cancel_reason="")


def _await_edge(record: Record, detail: str) -> Plan:
    changes: dict[str, Any] = {"state": "blocked", "reason": "dependencies", "detail": detail}
    if record.reason in LIMIT_REASONS or record.reason == "route":
        # That instant is when to look at the limit again, not a delay to remember.
        changes["wake_at"] = 0
    return change(record, "await_edge", **changes)


def combine(flow_id: str, target: str, group: Group | None, policy: EdgePolicy) -> FlowPlan:
    """Choose how the inbound edges of a member combine."""
    before = group or Group(target=target, flow_id=flow_id)
    k = 1 if policy.kind == "any_of" else policy.k
    after = _replace(before, policy=policy.kind, k=k, on_satisfied=policy.on_satisfied)
    return FlowPlan(
        flow_id=flow_id, rule="policy", graph=GraphEdit(groups=(after,), seen={target: group})
    )


def cancel_flow(flow_id: str, policy: CancelPolicy, reason: str, version: int = 0) -> FlowPlan:
    """End a flow and, in the same step, as many of the members to cancel as a step may."""
    return FlowPlan(
        flow_id=flow_id,
        rule="cancel",
        guard=FlowGuard(version=version),
        set={"cancel_policy": policy, "cancel_reason": reason},
        stamp=("cancelled_at",),
        event=Event("flow_cancel_requested", ("operator",), {"policy": policy, "reason": reason}),
        cancels=True,
    )


def abandon(flow: Flow) -> FlowPlan:
    """Give up a graph whose submitter sends no more of it."""
    return cancel_flow(flow.flow_id, "cancel_all", ABANDONED, flow.version)


def set_flow_tags(flow_id: str, tags: Mapping[str, str]) -> FlowPlan:
    return FlowPlan(flow_id=flow_id, rule="tag", guard=FlowGuard(uncancelled=False), tags=tags)
