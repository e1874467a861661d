"""Ending the members of a cancelled flow, so many a step, until none is left."""

from contextlib import suppress
from typing import Final

from flowfabric.core.graph import Flow, flow_due_at, has_work, members_to_cancel, states_to_cancel
from flowfabric.core.members import finish_flow, keep_flow, move_member
from flowfabric.core.rows import Rows
from flowfabric.core.rules.operators import cancel
from flowfabric.core.settle import continue_flow
from flowfabric.core.states import State
from flowfabric.core.transition import transition
from flowfabric.errors import FlowFabricError

MEMBERS_PER_STEP: Final = 100
# How many members that cannot be read a step passes on its way to those that can.
LOOKS_PER_STEP: Final = 1_000


def go_on_with(rows: Rows, flow: Flow) -> bool:
    """One more bounded step of what a flow has left to do; whether another one would do more.

    A cancel comes first: what it ends, nothing else has to release or skip.
    """
    if members_to_cancel(flow) and cancel_members(rows, flow.flow_id):
        finish_flow(rows, flow.flow_id)
        left = rows.flow(flow.flow_id)
        return left is not None and has_work(left)
    if not has_work(flow) and flow.due_at != flow_due_at(flow, rows.now):
        keep_flow(rows, flow)
    return continue_flow(rows, rows.flow(flow.flow_id) or flow)


def cancel_members(rows: Rows, flow_id: str) -> int:
    """End members by the flow's cancel policy, without settling their edges; how many it was."""
    flow = rows.flow(flow_id)
    if flow is None:
        return 0
    ended = 0
    for state in states_to_cancel(flow):
        ended += _cancel_in(rows, flow, state, MEMBERS_PER_STEP - ended)
        if ended >= MEMBERS_PER_STEP:
            break
    return ended


def _cancel_in(rows: Rows, flow: Flow, state: State, most: int) -> int:
    ended = 0
    after: tuple[int, str] | None = None
    for _ in range(LOOKS_PER_STEP // MEMBERS_PER_STEP):
        found = rows.members_in(flow.flow_id, state, after, most - ended)
        _expect(rows, [execution_id for _, execution_id in found])
        ended += sum(_cancel(rows, flow, execution_id) for _, execution_id in found)
        if ended >= most or not found:
            break
        after = found[-1]
    return ended


def _expect(rows: Rows, members: list[str]) -> None:
    # One that cannot be read spoils the reading of all: then each is read by itself.
    with suppress(FlowFabricError):
        rows.expect(members)


def _cancel(rows: Rows, flow: Flow, execution_id: str) -> bool:
    """End one member. One that cannot be read is passed over: the others must not wait for it."""
    try:
        record = rows.record(execution_id)
        if record is None or record.state not in states_to_cancel(flow):
            return False
        plan = cancel(execution_id, flow.cancel_reason, "flow_cascade", None)
        done = transition(record, plan, rows.now)
    except FlowFabricError:
        return False
    rows.write(done)
    move_member(rows, done)
    return True
