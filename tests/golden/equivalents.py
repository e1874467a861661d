"""Changes of functions and constants that make no difference to what Lua mirrors, and why."""

from collections import Counter
from typing import Final

_HELD_UP: Final = "any((counts.get(name) for name in held_up))"
_OPEN: Final = "edge.state == 'open' -> edge.state != 'open'"
_NO_KEY: Final = "not new.record.idempotency_key"
_NO_CHILDREN: Final = "not flow.child_counts"
_SO_MANY: Final = "live_members(flow) == live_children(flow)"
_ALL_CHILDREN: Final = f"live_members(flow) and {_SO_MANY}"
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
    "whoever leaves a state was counted in it": {"core.graph._counted": ("0 -> 1",)},
    "of a flow that is over nobody lives, and without children all counts are its own": {
        "core.graph.own_counts": (
            f"{_NO_CHILDREN} or ({_ALL_CHILDREN}) -> {_NO_CHILDREN} and ({_ALL_CHILDREN})",
            f"{_SO_MANY} -> {_SO_MANY.replace('==', '!=')}",
        )
    },
    "a cancel that has nobody to end ends nobody": {
        "core.graph.may_cancel_members": (
            "members_to_cancel(flow) > 0 -> members_to_cancel(flow) >= 0",
        )
    },
    "of a group that needs all, the judge asks something else": {
        "core.graph.needed_successes": ("'all_of' -> 'all_of!'",)
    },
    "no reason is neither an ending nor a resume": {
        "core.events.is_kept": ("'' -> '~'", "'' -> '~'")
    },
    "of two equal instants either is the first": {
        "core.transition.changed_record": ("instant < due_at -> instant <= due_at",)
    },
    "no key is never asked for, and one whose window is over is free": {
        "core.new_execution.new_entry": (
            f"{_NO_KEY} or {_NO_WINDOW} <= 0 -> {_NO_KEY} and {_NO_WINDOW} <= 0",
            f"{_NO_WINDOW} <= 0 -> {_NO_WINDOW} < 0",
        )
    },
    "no worker has this name": {"core.transition.transition": ("'' -> '~'",)},
    "a plan is applied to a record that is there": {"core.apply._perform": ("'' -> '~'",)},
    "what a record that stays blocked would be told again is what it was told": {
        "core.apply._perform": ("'blocked' -> 'blocked!'",)
    },
    "a page of no members ends the search as well": {
        "core.apply._cancel_in": ("len(ended) >= most -> len(ended) > most",),
        "core.apply.cancel_members": (
            "len(ended) >= MEMBERS_PER_STEP -> len(ended) > MEMBERS_PER_STEP",
        ),
    },
    "whoever asks has read the flow": {
        "core.apply.cancel_members": ("0 -> 1",),
        "core.settle._Walk.run": ("False -> True",),
        "core.settle._Walk._remember": ("False -> True",),
    },
    "what was kept since the flow was read has nothing left over": {
        "core.apply.go_on_with": (
            "rows.flow(flow.flow_id) or flow -> rows.flow(flow.flow_id) and flow",
        ),
    },
    "two edges more than are settled tell as well as one that there are others": {
        "core.settle._Walk._settle": ("1 -> 2",),
        "core.settle._Walk._gather": ("1 -> 2",),
        "core.settle._Walk._cancel_next": ("1 -> 2",),
        "core.settle._Walk._cancel_children": ("1 -> 2",),
    },
    "what was not expected is read when it is asked for": {
        "core.settle._Walk._settle": (_OPEN, "'open' -> 'open!'"),
        "core.settle._Walk._gather": (_OPEN, "'open' -> 'open!'"),
    },
    "settling asks no table whether its own plans are moves": {
        "core.members.release_plan": ("'release' -> 'release!'",)
    },
    "how a plan is called and what it answers is no part of the reservation": {
        "core.rules.operators.grant": ("'grant' -> 'grant!'", "'record' -> 'record!'")
    },
}
# By constant.
UNNOTICEABLE_CONSTANTS: Final = {
    "base.QUEUE": "only functions of a cluster name a queue; its own tests notice it",
    "queues.MOST_FOREIGN": "how many queues are passed over does not change what is found",
    "queues.MOST_NAMED": "which of thousands of queues a claim opens first is up to each store",
    "lease.QUEUE_PAGE": "how many records are read at once does not change which are claimed",
}


def listed() -> set[str]:
    """The functions of which a change is listed."""
    return {name for functions in _REASONS.values() for name in functions}


def unnoticeable(name: str) -> Counter[str]:
    """The changes of a function that make no difference, each as often as it can be made."""
    found = [changes for functions in _REASONS.values() for changes in [functions.get(name, ())]]
    return Counter(change for changes in found for change in changes)
