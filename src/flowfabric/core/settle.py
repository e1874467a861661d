"""Settling: what the end of a member does to the graph behind it, in the same step.

Edges are settled first, breadth first, and siblings are cut when no edge is left: only then is it
known whom nobody needs any more, and the end is the same however small the steps were. Work is
bounded; what a step leaves over is remembered on the flow by position, never edge by edge, and
taken up again newest first, which keeps that list short.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

import msgspec

from flowfabric.core.graph import (
    FINISHED,
    INPUT,
    Edge,
    Flow,
    Group,
    Unsettled,
    count_outcome,
    judge,
    resolve_edge,
)
from flowfabric.core.members import finish_flow, move_member
from flowfabric.core.plan import Plan
from flowfabric.core.record import Record
from flowfabric.core.rows import Rows
from flowfabric.core.states import FINAL, OUTCOMES
from flowfabric.core.step import step
from flowfabric.core.templates import cut_plan, release_plan, skip_plan

EDGES_PER_STEP: Final = 100
BYTES_PER_STEP: Final = 4 * 1024 * 1024
_PAGE: Final = EDGES_PER_STEP

_replace = msgspec.structs.replace


def settle_from(rows: Rows, ended: Record) -> bool:
    """Settle the edges that leave a member that just ended; whether work was left over."""
    walk = _Walk(rows, ended.flow_id, [Unsettled("settle", ended.execution_id)])
    return walk.run()


def settle_edges(rows: Rows, flow_id: str, edges: Iterable[Edge], *, successes_only: bool) -> bool:
    """Settle new or reopened edges whose source has ended already.

    A replayed member waits again for sources that did not succeed: they may be replayed too.
    """
    walk = _Walk(rows, flow_id, [])
    for edge in edges:
        source = rows.record(edge.source)
        if edge.state != "open" or source is None or source.state not in FINAL:
            continue
        if not successes_only or source.state == "completed" or edge.kind == FINISHED:
            walk.take(edge, OUTCOMES[source.state])
    return walk.run()


def continue_flow(rows: Rows, flow: Flow) -> bool:
    """Take up what earlier steps left; whether there is still more."""
    keep, work = flow.unsettled[:-_PAGE], flow.unsettled[-_PAGE:]
    due_at = flow.due_at if flow.due_at > rows.now else 0
    rows.put_flow(_replace(flow, unsettled=keep, due_at=due_at))
    more = _Walk(rows, flow.flow_id, work).run()
    finish_flow(rows, flow.flow_id)
    return more


def release_if_open(rows: Rows, record: Record) -> Record:
    """Release a member that waits for dependencies of which none is open any more."""
    group = rows.group(record.execution_id)
    if group is not None and group.state == "pending":
        resolved = group.succeeded + group.failed + group.skipped
        if resolved < group.n or group.staged:
            return record
    return _write(rows, record, release_plan(record, rows.now))


def _write(rows: Rows, record: Record, plan: Plan) -> Record:
    done = step(record, plan, rows.now)
    rows.write(done)
    if record.flow_id:
        move_member(rows, done)
    return done.after


class _Walk:
    def __init__(self, rows: Rows, flow_id: str, work: Iterable[Unsettled]) -> None:
        self._rows = rows
        self._flow_id = flow_id
        self._settles = deque[Unsettled]()
        self._cuts = deque[Unsettled]()
        for one in work:
            (self._settles if one.work == "settle" else self._cuts).append(one)
        self._edges_left = EDGES_PER_STEP
        self._bytes_left = BYTES_PER_STEP

    def run(self) -> bool:
        while self._has_room():
            if self._settles:
                self._settle(self._settles.popleft())
            elif self._cuts and not self._has_edges_left_over():
                self._cut(self._cuts.popleft())
            else:
                break
        return self._remember()

    def take(self, edge: Edge, outcome: str) -> None:
        """Settle one edge now, or leave it to its source's list when the step is full."""
        if not self._has_room():
            self._settles.append(Unsettled("settle", edge.source))
            return
        self._edges_left -= 1
        self._resolve(edge, outcome)

    def _has_room(self) -> bool:
        return self._edges_left > 0 and self._bytes_left > 0

    def _has_edges_left_over(self) -> bool:
        flow = self._rows.flow(self._flow_id)
        return flow is not None and any(one.work == "settle" for one in flow.unsettled)

    def _remember(self) -> bool:
        """Keep what is left on the flow, and wake its timer; whether anything is left."""
        flow = self._rows.flow(self._flow_id)
        if flow is None:
            return False
        # The end of the list is taken up first, so cuts stand before everything else.
        left = (*self._cuts, *flow.unsettled, *reversed(self._settles))
        if left and (left != flow.unsettled or not flow.due_at):
            self._rows.put_flow(_replace(flow, unsettled=left, due_at=self._rows.now))
        return bool(left)

    def _settle(self, work: Unsettled) -> None:
        source = self._rows.record(work.execution_id)
        # A source replayed meanwhile settles its edges when it ends again.
        if source is None or source.state not in FINAL:
            return
        outcome = OUTCOMES[source.state]
        after = work.after
        edges = self._rows.outgoing(work.execution_id, after, _PAGE)
        for edge in edges:
            if not self._has_room():
                break
            self._edges_left -= 1
            after = edge.edge_id
            if edge.state == "open":
                self._resolve(edge, outcome)
        if (edges and after != edges[-1].edge_id) or len(edges) == _PAGE:
            self._settles.appendleft(Unsettled("settle", work.execution_id, after))

    def _resolve(self, edge: Edge, outcome: str) -> None:
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
        if verdict == "pending":
            rows.put_group(group)
        else:
            self._fire(_replace(group, state=verdict, fired_at=rows.now))

    def _fire(self, group: Group) -> None:
        rows = self._rows
        if group.on_satisfied == "cancel_remaining":
            group = _replace(group, cancel_reason=f"sibling_quorum_{group.state}")
            self._cuts.append(Unsettled("cut", group.target))
        rows.put_group(group)
        target = rows.record(group.target)
        if target is None or target.state in FINAL:
            return
        if group.state == "impossible":
            _write(rows, target, skip_plan(target.execution_id))
            self._settles.append(Unsettled("settle", target.execution_id))
        elif target.state == "blocked" and target.reason == "dependencies":
            _write(rows, target, release_plan(target, rows.now))

    def _cut(self, work: Unsettled) -> None:
        group = self._rows.group(work.execution_id)
        if group is None or not group.cancel_reason:
            return
        after = work.after
        edges = self._rows.incoming(work.execution_id, after, _PAGE)
        for edge in edges:
            if not self._has_room():
                break
            self._edges_left -= 1
            after = edge.edge_id
            self._cut_source(edge, group.cancel_reason)
        if (edges and after != edges[-1].edge_id) or len(edges) == _PAGE:
            self._cuts.appendleft(Unsettled("cut", work.execution_id, after))

    def _cut_source(self, edge: Edge, reason: str) -> None:
        source = self._rows.record(edge.source)
        if source is None or source.state in FINAL or self._is_needed(edge):
            return
        _write(self._rows, source, cut_plan(source.execution_id, reason))
        self._settles.append(Unsettled("settle", source.execution_id))

    def _is_needed(self, edge: Edge) -> bool:
        """Whether an unfired group of another target still waits for this source."""
        after = ""
        while edges := self._rows.outgoing(edge.source, after, _PAGE):
            for other in edges:
                if other.target == edge.target or other.state not in ("open", "staged"):
                    continue
                group = self._rows.group(other.target)
                if group is not None and group.state == "pending" and group.round == other.round:
                    return True
            after = edges[-1].edge_id
        return False
