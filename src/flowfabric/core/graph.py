"""Flows, edges and edge groups: the graph around an execution, as data."""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from flowfabric.core.states import FINAL, PUBLIC_STATES, State, public_state

EdgeState = Literal["staged", "open", "satisfied", "impossible"]
GroupState = Literal["pending", "satisfied", "impossible"]
GroupPolicy = Literal["all_of", "any_of", "quorum"]
OnSatisfied = Literal["", "cancel_remaining", "let_run"]
CancelPolicy = Literal["", "cancel_all", "cancel_pending", "flow_only"]

# Edges made by a parent that parks on its children: every outcome satisfies one.
FINISHED: Final = "finished"
# The data ref whose result replaces the downstream's input.
INPUT: Final = "input"


class Edge(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    edge_id: str
    flow_id: str
    source: str
    target: str
    kind: str = "success_only"
    data_ref: str = ""
    round: int = 0
    state: EdgeState = "staged"
    resolved_at: int = 0
    created_at: int = 0
    created_by: str = ""


class Group(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How the inbound edges of one member combine. It fires once per round."""

    target: str
    flow_id: str
    policy: GroupPolicy = "all_of"
    k: int = 0
    on_satisfied: OnSatisfied = ""
    n: int = 0
    staged: int = 0
    succeeded: int = 0
    failed: int = 0
    skipped: int = 0
    round: int = 0
    state: GroupState = "pending"
    fired_at: int = 0
    cancel_reason: str = ""


class Unsettled(msgspec.Struct, frozen=True, array_like=True):
    """Work a bounded step left over: which list to go on with, and behind which edge."""

    work: Literal["settle", "cut"]
    execution_id: str
    after: str = ""


class Flow(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    flow_id: str
    namespace: str
    kind: str = ""
    graph_revision: int = 0
    version: int = 1
    node_count: int = 0
    edge_count: int = 0
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    purged_count: int = 0
    cancelled_at: int = 0
    cancel_reason: str = ""
    cancel_policy: CancelPolicy = ""
    unsettled: tuple[Unsettled, ...] = ()
    # While chunks of a large graph are missing the flow cannot finish.
    incomplete: bool = False
    due_at: int = 0
    finished_at: int = 0
    retention_ms: int = 86_400_000
    purge_at: int = 0
    created_at: int = 0
    changed_at: int = 0
    tags: dict[str, str] = msgspec.field(default_factory=dict)


class GraphEdit(msgspec.Struct, frozen=True, kw_only=True):
    """Rows a plan puts beside its record: new or moved edges, and the groups that count them."""

    edges: tuple[Edge, ...] = ()
    groups: tuple[Group, ...] = ()


FINAL_PUBLIC: Final = frozenset[str](FINAL)
LIVE_PUBLIC: Final = tuple(name for name in PUBLIC_STATES if name not in FINAL_PUBLIC)


def live_members(flow: Flow) -> int:
    return sum(flow.counts.get(name, 0) for name in LIVE_PUBLIC)


def flow_state(flow: Flow) -> str:
    """The public state of a flow, from its counters; the first rule that fits."""
    if flow.cancelled_at:
        return "cancelled"
    counts = flow.counts
    if flow.node_count and not flow.incomplete and not live_members(flow):
        unhappy = sum(counts.get(name, 0) for name in ("failed", "cancelled", "expired"))
        return "failed" if unhappy else "completed"
    if counts.get("active"):
        return "running"
    held_up = ("suspended", "delayed", "rate_limited", "waiting_children")
    return "blocked" if any(counts.get(name) for name in held_up) else "open"


def is_covered(flow: Flow | None, state: State) -> bool:
    """Whether the flow's cancellation ends a member in this state."""
    if flow is None or not flow.cancelled_at or state in FINAL:
        return False
    if flow.cancel_policy == "cancel_all":
        return True
    return flow.cancel_policy == "cancel_pending" and state not in ("active", "lost")


def count_move(flow: Flow, before: tuple[str, str] | None, after: tuple[str, str]) -> Flow:
    """The flow after one of its members went from one (state, reason) to another."""
    left = public_state(*before) if before else ""
    entered = public_state(*after)
    if left == entered:
        return flow
    counts = dict(flow.counts)
    if left:
        counts[left] = counts.get(left, 0) - 1
        if not counts[left]:
            del counts[left]
    counts[entered] = counts.get(entered, 0) + 1
    return msgspec.structs.replace(flow, counts=counts)


def needed_successes(group: Group) -> int:
    if group.policy == "all_of":
        return group.n
    return 1 if group.policy == "any_of" else group.k


def judge(group: Group) -> GroupState:
    """What the counters of a pending group amount to."""
    lost = group.failed + group.skipped
    if group.policy == "all_of":
        if lost:
            return "impossible"
        return "satisfied" if group.succeeded == group.n and not group.staged else "pending"
    k = needed_successes(group)
    if group.succeeded >= k:
        return "satisfied"
    if group.n >= k:
        return "impossible" if lost > group.n - k else "pending"
    resolved = group.succeeded + lost == group.n
    return "impossible" if resolved and not group.staged else "pending"


def resolve_edge(edge: Edge, outcome: str, now: int) -> Edge:
    """The edge after its source ended with this outcome; only an open edge moves."""
    satisfied = outcome == "success" or edge.kind == FINISHED
    return msgspec.structs.replace(
        edge, state="satisfied" if satisfied else "impossible", resolved_at=now
    )


def count_outcome(group: Group, edge: Edge, outcome: str) -> Group:
    """The group after one of its edges was resolved."""
    if edge.state == "satisfied":
        return msgspec.structs.replace(group, succeeded=group.succeeded + 1)
    if outcome == "skipped":
        return msgspec.structs.replace(group, skipped=group.skipped + 1)
    return msgspec.structs.replace(group, failed=group.failed + 1)


def reopen(group: Group, edges: Iterable[Edge]) -> GraphEdit:
    """The inbound edges and group of a skipped member that is to run after all."""
    counted = [edge for edge in edges if edge.round == group.round and edge.state != "staged"]
    reopened = tuple(
        msgspec.structs.replace(edge, state="open", resolved_at=0)
        for edge in counted
        if edge.state == "impossible"
    )
    satisfied = sum(edge.state == "satisfied" for edge in counted)
    fresh = msgspec.structs.replace(
        group,
        succeeded=satisfied,
        failed=0,
        skipped=0,
        state="pending",
        fired_at=0,
        cancel_reason="",
    )
    return GraphEdit(edges=reopened, groups=(fresh,))
