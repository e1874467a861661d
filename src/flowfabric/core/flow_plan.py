"""Flow plans: what a decision wants done to a flow, its graph and some of its members at once.

Flat data like the plans of single records. A flow plan is applied wholly or not at all, and every
member it touches carries a guard of its own.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from flowfabric.core.graph import Flow, GraphEdit, Group
from flowfabric.core.plan import Event, Guard, Plan, check_plan
from flowfabric.core.states import STATES

FlowRule = Literal["join", "stage", "link", "policy", "cancel", "tag"]


class FlowGuard(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What must hold of the flow. A missing one never fits, unless the plan brings it along."""

    uncancelled: bool = True
    graph_revision: int | None = None
    version: int = 0


class Require(msgspec.Struct, frozen=True):
    """A member the plan does not change but counts on."""

    execution_id: str
    guard: Guard


class FlowPlan(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    flow_id: str
    rule: FlowRule
    guard: FlowGuard = FlowGuard()
    # Made in the same step when there is no such flow yet.
    create: Flow | None = None
    set: Mapping[str, Any] = msgspec.field(default_factory=dict)
    # Fields that become the step's now.
    stamp: tuple[str, ...] = ()
    # Written over the tags there are; nobody has to know those.
    tags: Mapping[str, str] = msgspec.field(default_factory=dict)
    requires: tuple[Require, ...] = ()
    members: tuple[Plan, ...] = ()
    graph: GraphEdit = GraphEdit()
    event: Event | None = None
    # End members that the flow's cancellation covers, as many as one step may.
    cancels: bool = False


class FlowApplied(msgspec.Struct, frozen=True):
    """The flow after the plan, the groups it put as they stand now, how many members it ended, and
    whether the flow has more to do."""

    flow: Flow
    now: int
    groups: tuple[Group, ...] = ()
    cancelled: int = 0
    more: bool = False


class FlowRefused(msgspec.Struct, frozen=True):
    """Something is not as the change expects; `flow` is the flow as seen, None without one."""

    flow: Flow | None


FlowAnswer = FlowApplied | FlowRefused

_SETTABLE: Final = frozenset({"cancel_policy", "cancel_reason"})
_STAMPED: Final = frozenset({"cancelled_at"})
# What a plan may do to a member: make it one, or let it wait for one more edge.
_MEMBER_RULES: Final = frozenset({"join", "await_edge"})


def check_flow_plan(plan: FlowPlan) -> None:
    """Refuse a plan no store could apply; a fault of the engine, found before any I/O."""
    if not plan.set.keys() <= _SETTABLE or not _STAMPED.issuperset(plan.stamp):
        raise ValueError(f"flow plan {plan.rule} may not set {sorted({*plan.set, *plan.stamp})}")
    if plan.create is not None and plan.create.flow_id != plan.flow_id:
        raise ValueError(f"flow plan {plan.rule} brings another flow along")
    for member in plan.members:
        check_plan(member)
        if member.rule not in _MEMBER_RULES:
            raise ValueError(f"flow plan {plan.rule} may not {member.rule} a member")
    for required in plan.requires:
        if not required.guard.states <= STATES or not required.guard.states:
            raise ValueError(f"flow plan {plan.rule} requires unknown states")
    if any(edge.flow_id != plan.flow_id for edge in plan.graph.edges):
        raise ValueError(f"flow plan {plan.rule} writes an edge of another flow")
