"""Settling: what the end of a member does to the graph behind it, in the same step.

Edges are settled first, breadth first, and siblings are cancelled when no edge is left: only then
is it known whom nobody needs any more, and the end is the same however small the steps were. The
live children of a member that did not complete are cancelled along with its edges. Work is bounded;
what a step leaves over is remembered on the flow by position, never edge by edge, and taken up
again newest first, which keeps that list short.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from flowfabric.core.graph import (
    INPUT,
    Edge,
    Flow,
    Group,
    Unsettled,
    count_outcome,
    end_counts,
    has_ended_members,
    judge,
    live_children,
    pass_over,
    place_in,
    place_text,
    resolve_edge,
    resolved_edges,
)
from flowfabric.core.members import (
    PARENT_RESTARTED,
    cancel_child_plan,
    cancel_sibling_plan,
    finish_flow,
    keep_flow,
    move_member,
    parent_end_reason,
    release_plan,
    skip_plan,
    waits_for_edges,
)
from flowfabric.core.plan import Plan
from flowfabric.core.record import Record
from flowfabric.core.rows import Rows
from flowfabric.core.states import FINAL, OUTCOMES
from flowfabric.core.transition import transition
from flowfabric.errors import FlowFabricError

# Few enough that a step takes a few milliseconds; enough to cancel the losers of a race of fifty.
EDGES_PER_STEP: Final = 100
BYTES_PER_STEP: Final = 4 * 1024 * 1024
# Edges a step may look at and leave alone, on its way to those it settles.
LOOKS_PER_STEP: Final = 1_000
PAGE: Final = EDGES_PER_STEP
# The reason of a member that waits again because it was replayed.
REPLAYED: Final = "replayed"
# How the reason begins for which siblings are cancelled.
SIBLING_QUORUM: Final = "sibling_quorum_"
# What became of siblings that were to be cancelled and were not.
ALREADY_TERMINAL: Final = "already_terminal"
NOT_FOUND: Final = "not_found"

_replace = msgspec.structs.replace


def settle_from(rows: Rows, ended: Record) -> bool:
    """Settle the edges that leave a member that just ended, and cancel its children unless it has
    completed; whether work was left over."""
    walk = _Walk(rows, ended.flow_id, [])
    walk.follow(ended)
    return walk.run()


def settle_restart(rows: Rows, restarted: Record) -> bool:
    """Cancel the live children of the rounds before; whether work was left over."""
    walk = _Walk(rows, restarted.flow_id, [])
    walk.follow_restart(restarted)
    return walk.run()


def cancel_children(rows: Rows, flow_id: str, ended: Iterable[Record]) -> bool:
    """Cancel the children of members that ended without settling; whether work was left over."""
    walk = _Walk(rows, flow_id, [])
    for one in ended:
        walk.follow_children(one)
    return walk.run()


def settle_edges(
    rows: Rows, flow_id: str, edges: Iterable[Edge], *, replayed: bool = False
) -> bool:
    """Settle new or reopened edges whose source has ended already.

    A replayed member waits again for sources that did not succeed: they may be replayed too.
    """
    targets = dict.fromkeys(edge.target for edge in edges if edge.state == "open")
    reason = REPLAYED if replayed else ""
    return _Walk(rows, flow_id, [Unsettled("gather", one, reason=reason) for one in targets]).run()


def cancel_late_siblings(rows: Rows, flow_id: str, sources: Iterable[str]) -> bool:
    """Cancel members that were created after a group had fired that no longer wants them. While no
    member has ended none has fired, and the edges of a wide source need no look."""
    flow = rows.flow(flow_id)
    if flow is None or not has_ended_members(flow):
        return False
    walk = _Walk(rows, flow_id, [])
    for source in sources:
        walk.cancel_late_siblings(source)
    return walk.run()


def continue_flow(rows: Rows, flow: Flow) -> bool:
    """Take up what earlier steps left; whether there is still more."""
    if not flow.unsettled:
        return False
    keep_flow(rows, _replace(flow, unsettled=()))
    more = _Walk(rows, flow.flow_id, flow.unsettled).run()
    finish_flow(rows, flow.flow_id)
    return more


def release_if_open(rows: Rows, record: Record) -> Record:
    """Release a member that waits for dependencies of which none is open any more."""
    group = rows.group(record.execution_id)
    if group is not None and group.state == "pending":
        if resolved_edges(group) < group.n or group.staged:
            return record
        if group.n:
            rows.put_group(_replace(group, state="satisfied", fired_at=rows.now))
    return _write(rows, record, release_plan(record, rows.now))


def _write(rows: Rows, record: Record, plan: Plan) -> Record:
    done = transition(record, plan, rows.now)
    rows.write(done)
    if record.flow_id:
        move_member(rows, done)
    return done.after


class _Walk:
    """One step's worth of work on a flow.

    `_left` holds what earlier steps left, the newest last; `_fresh` what this one came upon, in the
    order of breadth; `_cancels` whose sources are cancelled once neither has anything.
    """

    def __init__(self, rows: Rows, flow_id: str, work: Iterable[Unsettled]) -> None:
        self._rows = rows
        self._flow_id = flow_id
        self._left: list[Unsettled] = []
        self._fresh = deque[Unsettled]()
        self._cancels = deque[Unsettled]()
        self._edges_left = EDGES_PER_STEP
        self._bytes_left = BYTES_PER_STEP
        self._looks_left = LOOKS_PER_STEP
        for one in work:
            self.add(one)

    def add(self, work: Unsettled) -> None:
        if work.work == "cancel_siblings":
            self._cancels.append(work)
        else:
            self._left.append(work)

    def follow(self, ended: Record) -> None:
        """See to what the end of a member leads to."""
        self._fresh.append(Unsettled("settle", ended.execution_id))
        self.follow_children(ended)

    def follow_children(self, ended: Record) -> None:
        if ended.state != "completed":
            self._cancel_tied(ended, parent_end_reason(ended), ended.round)

    def follow_restart(self, restarted: Record) -> None:
        self._cancel_tied(restarted, PARENT_RESTARTED, restarted.round - 1)

    def _cancel_tied(self, parent: Record, reason: str, last_round: int) -> None:
        """The flow's counters tell whether anybody has live children at all."""
        flow = self._rows.flow(self._flow_id)
        if flow is not None and live_children(flow):
            own, within = parent.execution_id, str(last_round)
            self._fresh.append(Unsettled("cancel_children", own, reason=reason, within=within))

    def run(self) -> bool:
        """Work until nothing is left or the step is full; whether the flow has more to do."""
        flow = self._rows.flow(self._flow_id)
        if flow is None:
            return False
        # Siblings wait for all edges, also for those that other steps have left over.
        may_cancel = all(one.work == "cancel_siblings" for one in flow.unsettled)
        while self._has_room():
            if self._left or self._fresh:
                self._settle_next()
            elif self._cancels and may_cancel:
                self._cancel_next()
            else:
                break
        return self._remember()

    def _has_room(self) -> bool:
        return self._edges_left > 0 and self._bytes_left > 0 and self._looks_left > 0

    def _remember(self) -> bool:
        """Keep what is left on the flow, which wakes its timer; whether anything is left."""
        flow = self._rows.flow(self._flow_id)
        if flow is None:
            return False
        own = (*self._left, *self._fresh)
        if own or self._cancels:
            left = (*self._cancels, *flow.unsettled, *own)
            keep_flow(self._rows, _replace(flow, unsettled=left))
            return True
        return bool(flow.unsettled)

    # ---- settling

    def _settle_next(self) -> None:
        work = self._left.pop() if self._left else self._fresh.popleft()
        self._looks_left -= 1
        match work.work:
            case "gather":
                self._gather(work)
            case "cancel_children":
                self._cancel_children(work)
            case _:
                self._settle(work)

    def _settle(self, work: Unsettled) -> None:
        source = self._rows.record(work.execution_id)
        # A source replayed meanwhile settles its edges when it ends again.
        if source is None or source.state not in FINAL:
            return
        limit = min(PAGE, self._edges_left)
        edges = self._rows.outgoing(work.execution_id, work.after, limit + 1)
        self._rows.expect([edge.target for edge in edges[:limit] if edge.state == "open"])
        after = work.after
        for edge in edges[:limit]:
            if not self._has_room():
                break
            self._looks_left -= 1
            after = edge.edge_id
            if edge.state == "open" and end_counts(edge, source):
                self._edges_left -= 1
                self._resolve(edge, OUTCOMES[source.state])
        self._go_on_behind(work, edges, after)

    def _gather(self, work: Unsettled) -> None:
        replayed = work.reason == REPLAYED
        limit = min(PAGE, self._looks_left)
        edges = self._rows.incoming(work.execution_id, work.after, limit + 1)
        self._rows.expect([edge.source for edge in edges[:limit] if edge.state == "open"])
        after = work.after
        for edge in edges[:limit]:
            if not self._has_room():
                break
            self._looks_left -= 1
            after = edge.edge_id
            self._gather_edge(edge, replayed=replayed)
        is_done = not self._go_on_behind(work, edges, after)
        if is_done and replayed:
            self._release_replayed(work.execution_id)

    def _gather_edge(self, edge: Edge, *, replayed: bool) -> None:
        source = self._rows.record(edge.source)
        if edge.state != "open" or source is None:
            return
        asked = pass_over(edge, source) if replayed else edge
        if end_counts(asked, source):
            self._edges_left -= 1
            self._resolve(asked, OUTCOMES[source.state], replayed=replayed)
        elif asked != edge:
            self._edges_left -= 1
            self._rows.put_edge(asked)

    def _release_replayed(self, execution_id: str) -> None:
        """A replayed member runs when no edge is open any more, whatever its group would say."""
        record = self._rows.record(execution_id)
        if record is not None and (record.state, record.reason) == ("blocked", "dependencies"):
            release_if_open(self._rows, record)

    def _go_on_behind(self, work: Unsettled, edges: Sequence[Edge], after: str) -> bool:
        """Leave the rest of a list, if it has one, to what comes after the newer work."""
        has_rest = bool(edges) and after != edges[-1].edge_id
        if has_rest:
            self._left.append(_replace(work, after=after))
        return has_rest

    def _resolve(self, edge: Edge, outcome: str, *, replayed: bool = False) -> None:
        rows = self._rows
        resolved = resolve_edge(edge, outcome, rows.now)
        rows.put_edge(resolved)
        group = rows.group(edge.target)
        if group is None or group.round != edge.round:
            return
        pending = group.state == "pending"
        if pending and resolved.state == "satisfied" and edge.data_ref == INPUT:
            self._bytes_left -= rows.copy_result(edge.source, edge.target)
        group = count_outcome(group, resolved, outcome)
        verdict = judge(group) if pending else "pending"
        if verdict == "pending" or (replayed and verdict == "impossible"):
            rows.put_group(group)
        else:
            self._fire(_replace(group, state=verdict, fired_at=rows.now))

    def _fire(self, group: Group) -> None:
        rows = self._rows
        if group.on_satisfied == "cancel_remaining":
            reason = SIBLING_QUORUM + group.state
            group = _replace(group, cancel_reason=reason)
            self._cancels.append(Unsettled("cancel_siblings", group.target, reason=reason))
        rows.put_group(group)
        target = rows.record(group.target)
        if target is None or target.state in FINAL:
            return
        if group.state == "impossible":
            self.follow(_write(rows, target, skip_plan(target.execution_id)))
        elif waits_for_edges(target):
            _write(rows, target, release_plan(target, rows.now))

    # ---- children

    def _cancel_children(self, work: Unsettled) -> None:
        limit = min(PAGE, self._edges_left)
        places = self._rows.tied_children(work.execution_id, place_in(work.after), limit + 1)
        # One that cannot be read spoils the reading of all: then each is read by itself.
        with suppress(FlowFabricError):
            self._rows.expect([child for _, child in places[:limit]])
        after = work.after
        for place in places[:limit]:
            if not self._has_room():
                break
            self._edges_left -= 1
            after = place_text(place)
            self._cancel_child(place[1], work)
        if places and after != place_text(places[-1]):
            self._left.append(_replace(work, after=after))

    def _cancel_child(self, execution_id: str, work: Unsettled) -> None:
        """A child of a later round belongs to a parent that was replayed meanwhile. One that
        cannot be read is passed over: neither its parent nor the others must wait for it."""
        with suppress(FlowFabricError):
            child = self._rows.record(execution_id)
            if child and child.state not in FINAL and child.parent_round <= int(work.within):
                plan = cancel_child_plan(execution_id, work.reason)
                self.follow(_write(self._rows, child, plan))

    # ---- siblings

    def cancel_late_siblings(self, source: str) -> None:
        after = ""
        while edges := self._rows.outgoing(source, after, PAGE):
            for edge in edges:
                group = self._rows.group(edge.target)
                if group is not None and group.cancel_reason and group.round == edge.round:
                    self._cancel_source(edge, group.cancel_reason, "")
                    return
            after = edges[-1].edge_id

    def _cancel_next(self) -> None:
        work = self._cancels.popleft()
        self._looks_left -= 1
        limit = min(PAGE, self._edges_left)
        edges = self._rows.incoming(work.execution_id, work.after, limit + 1)
        self._rows.expect([edge.source for edge in edges[:limit]])
        within = work.within
        after = work.after
        for edge in edges[:limit]:
            if not self._has_room():
                break
            self._edges_left -= 1
            looked = self._cancel_source(edge, work.reason, within)
            if looked is not None:
                self._cancels.appendleft(_replace(work, after=after, within=looked))
                return
            after, within = edge.edge_id, ""
        if edges and after != edges[-1].edge_id:
            self._cancels.appendleft(_replace(work, after=after, within=""))

    def _cancel_source(self, edge: Edge, reason: str, within: str) -> str | None:
        """Cancel one sibling unless somebody needs it; how far its edges were looked at when the
        step became full before that was known."""
        source = self._rows.record(edge.source)
        if edge.state == "staged" or source is None or source.state in FINAL:
            self._count_missed(edge, source)
            return None
        after = within
        while edges := self._rows.outgoing(edge.source, after, PAGE):
            if any(self._is_needed_for(one) for one in edges):
                return None
            after = edges[-1].edge_id
            self._looks_left -= len(edges)
            if len(edges) < PAGE:
                break
            if self._looks_left <= 0:
                return after
        self.follow(_write(self._rows, source, cancel_sibling_plan(source.execution_id, reason)))
        self._rows.count_sibling(reason)
        return None

    def _count_missed(self, edge: Edge, source: Record | None) -> None:
        """Of an edge that is settled the source has had its say; it was no sibling to cancel."""
        if edge.state == "open":
            self._rows.count_sibling(ALREADY_TERMINAL if source else NOT_FOUND)

    def _is_needed_for(self, edge: Edge) -> bool:
        """Whether the group this edge leads to has not fired and still waits for it."""
        if edge.state not in ("open", "staged"):
            return False
        group = self._rows.group(edge.target)
        return group is not None and group.state == "pending" and group.round == edge.round
