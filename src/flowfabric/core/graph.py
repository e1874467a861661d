"""Flows, edges and edge groups: the graph around an execution, as data."""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from flowfabric.core.record import Record
from flowfabric.core.states import FINAL, PUBLIC_STATES, State, public_state
from flowfabric.errors import InvariantViolation

EdgeState = Literal["staged", "open", "satisfied", "impossible"]
GroupState = Literal["pending", "satisfied", "impossible"]
GroupPolicy = Literal["all_of", "any_of", "quorum"]
OnSatisfied = Literal["", "cancel_remaining", "let_run"]
Work = Literal["settle", "gather", "cancel_siblings", "cancel_children"]
CancelPolicy = Literal["", "cancel_all", "cancel_pending", "flow_only"]

# Edges made by a parent that parks on its children: every outcome satisfies one.
FINISHED: Final = "finished"
# The data ref whose result replaces the downstream's input.
INPUT: Final = "input"
# What the results of a member's upstreams may be in one answer; the rest is read one by one.
UPSTREAM_BYTES: Final = 4 * 1024 * 1024


class Edge(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    edge_id: str
    flow_id: str
    source: str
    target: str
    kind: str = "success_only"
    data_ref: str = ""
    round: int = 0
    state: EdgeState = "staged"
    # How its source ended, once the edge is resolved.
    outcome: str = ""
    # How many ends of its source lie before a replay of its target and count only if the last of
    # them was a success.
    past_ends: int = 0
    resolved_at: int = 0
    created_at: int = 0
    created_by: str = ""


def edge_key(edge: Edge) -> tuple[str, str]:
    """An edge id is unique only in its flow."""
    return edge.flow_id, edge.edge_id


def ends_of(edge: Edge) -> tuple[str, str]:
    return edge.source, edge.target


class Group(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
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


class Unsettled(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Work a bounded step left over: which list to go on with, and behind which edge.

    `settle`: the edges that leave a member that ended. `gather`: those that lead to a member and
    whose source ended before; with the reason "replayed" the member waits again for those that did
    not succeed. `cancel_siblings`: the live sources of a member whose group fired; `within` is how
    far the edges of the next source have been looked at. `cancel_children`: the live children of a
    member that ended, those of its round `within` and earlier ones.
    """

    work: Work
    execution_id: str
    after: str = ""
    reason: str = ""
    within: str = ""


def place_text(place: tuple[int, str]) -> str:
    """The place of a child among its parent's, as left over work keeps it in `after`."""
    return f"{place[0]} {place[1]}"


def place_in(text: str) -> tuple[int, str] | None:
    created_at, _, execution_id = text.partition(" ")
    return (int(created_at), execution_id) if text else None


class Flow(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    flow_id: str
    namespace: str
    kind: str = ""
    # Where it lives; -1 when its maker did not say.
    partition: int = -1
    graph_revision: int = 0
    version: int = 1
    node_count: int = 0
    edge_count: int = 0
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    # Of these, the members that have a parent.
    child_counts: dict[str, int] = msgspec.field(default_factory=dict)
    purged_count: int = 0
    cancelled_at: int = 0
    cancel_reason: str = ""
    cancel_policy: CancelPolicy = ""
    unsettled: tuple[Unsettled, ...] = ()
    # While chunks of a large graph are missing the flow cannot finish; if none comes until
    # `submit_until`, nobody sends them any more.
    incomplete: bool = False
    submit_until: int = 0
    # Tells whether a graph submitted again is the same one.
    digest: str = ""
    due_at: int = 0
    finished_at: int = 0
    retention_ms: int = 86_400_000
    purge_at: int = 0
    created_at: int = 0
    changed_at: int = 0
    tags: dict[str, str] = msgspec.field(default_factory=dict)


class GraphEdit(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that a plan writes with its record: new or moved edges, and the groups that count them.

    A group decided from a reading names that reading in `seen`, None if there was none: when it has
    changed since, the plan is refused.
    """

    edges: tuple[Edge, ...] = ()
    groups: tuple[Group, ...] = ()
    seen: Mapping[str, Group | None] = msgspec.field(default_factory=dict)


FINAL_PUBLIC: Final = frozenset[str](FINAL)
# Ends that make a flow a failed one.
UNHAPPY: Final = ("failed", "cancelled", "expired")
LIVE_PUBLIC: Final = tuple(name for name in PUBLIC_STATES if name not in FINAL_PUBLIC)


def live_members(flow: Flow) -> int:
    return sum(flow.counts.get(name, 0) for name in LIVE_PUBLIC)


def live_children(flow: Flow) -> int:
    return sum(flow.child_counts.get(name, 0) for name in LIVE_PUBLIC)


def has_ended_members(flow: Flow) -> bool:
    return bool(flow.purged_count) or any(flow.counts.get(state) for state in FINAL)


def grown(flow: Flow, *, members: int = 0, edges: int = 0) -> Flow:
    """The flow with more members and edges; its revision shows editors that it was changed."""
    return msgspec.structs.replace(
        flow,
        node_count=flow.node_count + members,
        edge_count=flow.edge_count + edges,
        graph_revision=flow.graph_revision + members + edges,
    )


def is_over(flow: Flow) -> bool:
    """Whether all members have ended and no more are on their way. A graph that was cancelled
    before it was whole ends without the rest."""
    whole = not flow.incomplete or bool(flow.cancelled_at)
    return bool(flow.node_count) and whole and not live_members(flow)


def flow_state(flow: Flow) -> str:
    """The public state of a flow, from its counters; the first rule that fits. Children count for
    their parent, who decides what becomes of their ends; only those that outlive all other members
    speak for the flow."""
    if flow.cancelled_at:
        return "cancelled"
    counts = own_counts(flow)
    if is_over(flow):
        unhappy = sum(counts.get(name, 0) for name in UNHAPPY)
        return "failed" if unhappy else "completed"
    if counts.get("active"):
        return "running"
    held_up = ("suspended", "delayed", "rate_limited", "waiting_children")
    return "blocked" if any(counts.get(name) for name in held_up) else "open"


def own_counts(flow: Flow) -> dict[str, int]:
    """The counts of members without parent; of all when only children are left alive."""
    if not flow.child_counts or (live_members(flow) and live_members(flow) == live_children(flow)):
        return flow.counts
    return {name: n - flow.child_counts.get(name, 0) for name, n in flow.counts.items()}


# The states in which each policy ends a member, those first that cost nobody anything.
CANCELLED_BY_POLICY: Final[dict[CancelPolicy, tuple[State, ...]]] = {
    "cancel_all": ("waiting", "delayed", "blocked", "suspended", "active", "lost"),
    "cancel_pending": ("waiting", "delayed", "blocked", "suspended"),
}


def states_to_cancel(flow: Flow) -> tuple[State, ...]:
    return CANCELLED_BY_POLICY.get(flow.cancel_policy, ()) if flow.cancelled_at else ()


def is_cancelled_by_flow(flow: Flow | None, state: State) -> bool:
    """Whether the flow's cancellation ends a member in this state."""
    return flow is not None and state in states_to_cancel(flow)


def members_to_cancel(flow: Flow) -> int:
    """How many members the flow's cancellation still has to end, by its counters."""
    if not states_to_cancel(flow):
        return 0
    spared = flow.counts.get("active", 0) if flow.cancel_policy == "cancel_pending" else 0
    return live_members(flow) - spared


def may_cancel_members(flow: Flow) -> bool:
    """Whether a step of the flow's cancellation may end members. Children of those before come
    first, so that no more of them are remembered than one step leaves over."""
    waits = any(one.work == "cancel_children" for one in flow.unsettled)
    return not waits and members_to_cancel(flow) > 0


def has_work(flow: Flow) -> bool:
    """Whether a bounded step left something over that the flow's timer would go on with."""
    return bool(flow.unsettled) or members_to_cancel(flow) > 0


def flow_due_at(flow: Flow, now: int) -> int:
    """The one timer of a flow: at once while work is left, later for a submit that may stop."""
    if has_work(flow):
        return min(flow.due_at or now, now)
    return flow.submit_until if flow.incomplete and not flow.cancelled_at else 0


def is_abandoned(flow: Flow, now: int) -> bool:
    """Whether nobody has sent a chunk of this graph for too long."""
    return flow.incomplete and not flow.cancelled_at and 0 < flow.submit_until <= now


def count_move(
    flow: Flow, before: tuple[str, str] | None, after: tuple[str, str], *, is_child: bool = False
) -> Flow:
    """The flow after one of its members went from one (state, reason) to another."""
    left = public_state(*before) if before else ""
    entered = public_state(*after)
    if left == entered:
        return flow
    counts = _counted(flow.counts, left, entered)
    if not is_child:
        return msgspec.structs.replace(flow, counts=counts)
    child_counts = _counted(flow.child_counts, left, entered)
    return msgspec.structs.replace(flow, counts=counts, child_counts=child_counts)


def _counted(before: Mapping[str, int], left: str, entered: str) -> dict[str, int]:
    counts = dict(before)
    if left:
        counts[left] = counts.get(left, 0) - 1
        if not counts[left]:
            del counts[left]
    counts[entered] = counts.get(entered, 0) + 1
    return counts


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
    resolved = resolved_edges(group) == group.n
    return "impossible" if resolved and not group.staged else "pending"


def resolve_edge(edge: Edge, outcome: str, now: int) -> Edge:
    """The edge after its source ended with this outcome; only an open edge moves."""
    satisfied = outcome == "success" or edge.kind == FINISHED
    return msgspec.structs.replace(
        edge, state="satisfied" if satisfied else "impossible", outcome=outcome, resolved_at=now
    )


def resolved_edges(group: Group) -> int:
    return group.succeeded + group.failed + group.skipped


def overfull(target: str, edges: int) -> InvariantViolation:
    """Stored data contradicts itself: a group counts more outcomes than it has edges."""
    return InvariantViolation(f"group of {target}: more outcomes than its {edges} edges")


def count_outcome(group: Group, edge: Edge, outcome: str) -> Group:
    """The group after one of its edges was resolved."""
    if resolved_edges(group) >= group.n:
        raise overfull(group.target, group.n)
    if edge.state == "satisfied":
        return msgspec.structs.replace(group, succeeded=group.succeeded + 1)
    if outcome == "skipped":
        return msgspec.structs.replace(group, skipped=group.skipped + 1)
    return msgspec.structs.replace(group, failed=group.failed + 1)


def end_counts(edge: Edge, source: Record) -> bool:
    """Whether its source has ended in a way that resolves this edge."""
    if source.state not in FINAL:
        return False
    is_new = source.replay_count >= edge.past_ends
    return is_new or source.state == "completed" or edge.kind == FINISHED


def pass_over(edge: Edge, source: Record | None) -> Edge:
    """The edge of a replayed member: of a source that has ended, only its next end counts."""
    if source is None or source.state not in FINAL:
        return edge
    return msgspec.structs.replace(edge, past_ends=source.replay_count + 1)


def reopen(group: Group, edges: Iterable[Edge], sources: Mapping[str, Record]) -> GraphEdit:
    """The inbound edges and group of a skipped member that is to run after all."""
    counted = [edge for edge in edges if edge.round == group.round and edge.state != "staged"]
    waited_for = tuple(
        pass_over(
            msgspec.structs.replace(edge, state="open", outcome="", resolved_at=0),
            sources.get(edge.source),
        )
        for edge in counted
        if edge.state != "satisfied"
    )
    fresh = msgspec.structs.replace(
        group,
        succeeded=len(counted) - len(waited_for),
        failed=0,
        skipped=0,
        state="pending",
        fired_at=0,
        cancel_reason="",
    )
    return GraphEdit(edges=waited_for, groups=(fresh,), seen={group.target: group})


class Upstream(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One input of a member: where it comes from, how that ended, and its result if it was read."""

    edge_id: str
    execution_id: str
    data_ref: str = msgspec.field(default="", name="data_passing_ref")
    outcome: str = ""
    satisfied_at: int = 0
    result: bytes | None = None
    result_encoding: str = ""
    result_deferred: bool = False
