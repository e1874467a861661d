"""Changes of a function that make no difference to what Lua mirrors, and why."""

from collections import Counter
from typing import Final

_HELD_UP: Final = "any((counts.get(name) for name in held_up))"
_NOT_CANCELLED: Final = "record.state not in states_to_cancel(flow)"
_NO_KEY: Final = "not new.record.idempotency_key"
_NO_WINDOW: Final = "new.dedup_window_ms"
# By reason: functions, and what is changed in them.
_REASONS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "only a flow that is over is asked for its state by a store": {
        "core.graph.flow_state": (
            "'active' -> 'active!'",
            "'running' -> 'running!'",
            "'suspended' -> 'suspended!'",
            "'delayed' -> 'delayed!'",
            "'rate_limited' -> 'rate_limited!'",
            "'waiting_children' -> 'waiting_children!'",
            f"'blocked' if {_HELD_UP} else 'open' -> 'open' if {_HELD_UP} else 'blocked'",
            "'blocked' -> 'blocked!'",
            "'open' -> 'open!'",
        )
    },
    "whoever leaves a state was counted in it": {"core.graph.count_move": ("0 -> 1",)},
    "of a group that needs all, the judge asks something else": {
        "core.graph.needed_successes": ("'all_of' -> 'all_of!'",)
    },
    "no reason is neither an ending nor a resume": {
        "core.events.is_kept": ("'' -> '!'", "'' -> '!'")
    },
    "of two equal instants either is the first": {
        "core.transition.changed_record": ("instant < due_at -> instant <= due_at",)
    },
    "no key is never asked for, and one whose window is over is free": {
        "core.idempotency.new_entry": (
            f"{_NO_KEY} or {_NO_WINDOW} <= 0 -> {_NO_KEY} and {_NO_WINDOW} <= 0",
            f"{_NO_WINDOW} <= 0 -> {_NO_WINDOW} < 0",
        )
    },
    "a plan is applied to a record that is there": {
        "core.apply._perform": ("'' -> '!'",),
        "core.apply._has_moved": (
            "before is None or plan.graph is not None -> before is None and plan.graph is not None",
        ),
        "core.apply._release_if_met": (
            "rows.record(after.execution_id) or after -> rows.record(after.execution_id) and after",
        ),
    },
    "a record that is blocked still is not answered otherwise": {
        "core.apply._perform": (
            "plan.op and after.state != 'blocked' -> plan.op or after.state != 'blocked'",
            "'blocked' -> 'blocked!'",
        )
    },
    "a view shows members in its state, and a flow is there while it has work": {
        "core.flow_cancel._cancel": (
            f"record is None or {_NOT_CANCELLED} -> record is None and {_NOT_CANCELLED}",
            "False -> True",
            "False -> True",
        ),
        "core.flow_cancel.cancel_members": ("0 -> 1",),
        "core.flow_cancel.go_on_with": (
            "rows.flow(flow.flow_id) or flow -> rows.flow(flow.flow_id) and flow",
        ),
    },
    "how a plan is called and what it answers is no part of the reservation": {
        "core.rules.operators.grant": ("'grant' -> 'grant!'", "'record' -> 'record!'")
    },
}


def unnoticeable(name: str) -> Counter[str]:
    """The changes of a function that make no difference, each as often as it can be made."""
    found = [changes for functions in _REASONS.values() for changes in [functions.get(name, ())]]
    return Counter(change for changes in found for change in changes)
