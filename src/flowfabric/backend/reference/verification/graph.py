"""Checks of flows, edges and groups: counters are what members and edges add up to."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from flowfabric.backend.reference.flows import members_of
from flowfabric.backend.reference.tables import EDGES, FLOWS, GROUPS, RECORDS
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.verification.records import pages, rows_of
from flowfabric.backend.types import Discrepancy
from flowfabric.core.graph import (
    FINAL_PUBLIC,
    LIVE_PUBLIC,
    Edge,
    Flow,
    Group,
    has_work,
    is_over,
    judge,
)
from flowfabric.core.record import Record
from flowfabric.core.states import public_state

_PAGE: Final = 1_000
_FEW: Final = 20
_EVER: Final = 2**62


def check_graph(tx: Transaction) -> Iterator[Discrepancy]:
    timed: set[str] = set()
    for flow_id, flow in rows_of(tx.tables, FLOWS):
        yield from check_flow(flow, members_of(tx.tables, flow_id))
        yield from _check_listed(tx, flow)
        if flow.due_at:
            timed.add(flow_id)
    yield from _check_timers(tx, timed)
    for _, edge in rows_of(tx.tables, EDGES):
        yield from _check_edge(tx, edge)
    for _, group in rows_of(tx.tables, GROUPS):
        yield from _check_group(tx, group)


def check_flow(flow: Flow, members: Iterator[Record]) -> Iterator[Discrepancy]:
    """Purged members are still counted, but in which state is no longer known."""
    seen, children = Counter[str](), Counter[str]()
    for member in members:
        state = public_state(member.state, member.reason)
        seen[state] += 1
        children[state] += bool(member.parent_id)
    own = flow.flow_id
    for name in LIVE_PUBLIC:
        if flow.child_counts.get(name, 0) != children[name]:
            found = str(flow.child_counts.get(name, 0))
            yield Discrepancy(f"children {name}", own, found, str(children[name]))
    for name in LIVE_PUBLIC:
        if flow.counts.get(name, 0) != seen[name]:
            yield Discrepancy(f"flow {name}", own, str(flow.counts.get(name, 0)), str(seen[name]))
    ended = sum(flow.counts.get(name, 0) - seen[name] for name in FINAL_PUBLIC)
    fewer = any(flow.counts.get(name, 0) < seen[name] for name in FINAL_PUBLIC)
    if ended != flow.purged_count or fewer:
        yield Discrepancy("flow counts", own, str(flow.counts), f"{seen}, {flow.purged_count} gone")
    total = sum(seen.values()) + flow.purged_count
    if total != flow.node_count and not flow.incomplete:
        yield Discrepancy("node_count", own, str(flow.node_count), str(total))
    over = is_over(flow)
    # A flow without members is over only when it is cancelled.
    if flow.node_count and bool(flow.finished_at) != over:
        yield Discrepancy("finished_at", own, str(flow.finished_at), "set" if over else "unset")
    if has_work(flow) and not flow.due_at:
        yield Discrepancy("due_at", own, "unset", "set while work is left")
    if bool(flow.purge_at) != bool(flow.finished_at):
        yield Discrepancy("purge_at", own, str(flow.purge_at), "set once finished")


def _check_listed(tx: Transaction, flow: Flow) -> Iterator[Discrepancy]:
    own = flow.flow_id
    listed = tx.tables.flows_in(flow.partition, own[:-1], _FEW)
    if flow not in listed:
        yield Discrepancy("flows_in", own, "not shown", f"shown in partition {flow.partition}")
    if flow not in tx.tables.flows_by_age((flow.created_at, own[:-1]), _FEW, newest=False):
        yield Discrepancy("flow_ages", own, "not shown", f"shown at {flow.created_at}")
    if flow.purged_count:
        return
    edges = pages(lambda last: tx.tables.flow_edges(own, last.edge_id if last else "", _PAGE))
    total = sum(1 for _ in edges)
    if total != flow.edge_count:
        yield Discrepancy("edge_count", own, str(flow.edge_count), str(total))


def _check_timers(tx: Transaction, timed: set[str]) -> Iterator[Discrepancy]:
    def page(last: Flow | None) -> list[Flow]:
        after = (last.due_at, last.flow_id) if last else None
        return tx.tables.due_flows(_EVER, _PAGE, after)

    listed = {flow.flow_id for flow in pages(page)}
    for flow_id in sorted(listed ^ timed):
        found = "shown" if flow_id in listed else "not shown"
        yield Discrepancy("flow timer", flow_id, found, "shown if it has a due_at")


def _check_edge(tx: Transaction, edge: Edge) -> Iterator[Discrepancy]:
    tables, own = tx.tables, edge.edge_id
    lists = {
        "outgoing": (tables.outgoing, edge.source),
        "incoming": (tables.incoming, edge.target),
        "flow_edges": (tables.flow_edges, edge.flow_id),
    }
    for name, (read, end) in lists.items():
        if not _is_listed(read, end, edge):
            yield Discrepancy(name, own, "not shown", f"shown at {end}")
    flow = tables.get(FLOWS, edge.flow_id)
    if flow is None:
        yield Discrepancy("edge", own, "no owner", f"flow {edge.flow_id}")
        return
    if flow.purged_count:
        return
    # The source may be in a chunk of the graph that is still to come.
    ends = (edge.target,) if flow.incomplete else (edge.source, edge.target)
    for end in ends:
        if tables.get(RECORDS, end) is None:
            yield Discrepancy("edge", own, "no member", end)


def _is_listed(read: Callable[[str, str, int], list[Edge]], end: str, edge: Edge) -> bool:
    # The id without its end sorts closely before it.
    after = edge.edge_id[:-1]
    while page := read(end, after, _FEW):
        if edge in page:
            return True
        after = page[-1].edge_id
        if after > edge.edge_id:
            break
    return False


def _check_group(tx: Transaction, group: Group) -> Iterator[Discrepancy]:
    own = group.target
    flow = tx.tables.get(FLOWS, group.flow_id)
    if tx.tables.get(RECORDS, own) is None or flow is None:
        yield Discrepancy("group", own, "no owner", f"a member of flow {group.flow_id}")
    edges = [
        edge
        for edge in pages(lambda last: tx.tables.incoming(own, last.edge_id if last else "", _PAGE))
        if edge.round == group.round
    ]
    seen = Counter(edge.state for edge in edges)
    # Edges in a chunk of the graph that is still to come count as staged.
    staged = group.staged if flow is not None and flow.incomplete else seen["staged"]
    counters = {
        "n": (group.n, len(edges) - seen["staged"]),
        "staged": (group.staged, staged),
        "succeeded": (group.succeeded, seen["satisfied"]),
        "failed and skipped": (group.failed + group.skipped, seen["impossible"]),
    }
    for name, (found, expected) in counters.items():
        if found != expected:
            yield Discrepancy(f"group {name}", own, str(found), str(expected))
    if group.state == "pending" and group.n and judge(group) != "pending":
        yield Discrepancy("group state", own, "pending", judge(group))
    if (group.state == "pending") == bool(group.fired_at):
        yield Discrepancy("fired_at", own, str(group.fired_at), f"fits {group.state}")
