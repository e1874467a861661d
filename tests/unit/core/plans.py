"""Every plan the rules make, by name, and the states in which each may be applied."""

from collections.abc import Callable
from typing import Final, NamedTuple

from flowfabric.core.due import expire, forget_delay, lose, promote, time_out
from flowfabric.core.graph import GraphEdit, Group
from flowfabric.core.lease import GrantTerms
from flowfabric.core.members import cancel_sibling_plan, release_plan, skip_plan
from flowfabric.core.plan import Plan, Timer
from flowfabric.core.record import Record
from flowfabric.core.rules.attempts import (
    Children,
    Failure,
    complete,
    delay,
    fail,
    park,
    progress,
    renew,
)
from flowfabric.core.rules.operators import (
    Block,
    block,
    cancel,
    change_priority,
    exhaust,
    grant,
    note,
    revoke,
    set_tags,
    unblock,
    ungrant,
)
from flowfabric.core.rules.replay import (
    NewInput,
    Reopening,
    ReplayRequest,
    Scene,
    replay,
    restart,
)
from tests.unit.core.records import EXECUTION, FENCE, NOW

_LIVE: Final = "waiting delayed blocked active lost suspended"
_FINAL: Final = "completed failed cancelled expired skipped"
RETRYING: Final = '{"retry_policy":{"max_retries":3,"backoff":{"type":"fixed","delay_ms":250}}}'
TIMED: Final = (
    '{"retry_policy":{"backoff":{"type":"fixed","delay_ms":250},'
    '"retryable_categories":["timeout"]}}'
)


class Rule(NamedTuple):
    """A plan as the engine makes one, and the `states` in which it may be applied.

    One that is `decided` from a reading is guarded by that reading's version alone: its maker
    looked at the state before, and asking it in another state is a fault of the engine.
    """

    make: Callable[[Record], Plan]
    states: str
    policy: str = ""
    decided: bool = False


_FAILURE: Final = Failure("it broke", "transient")
_LIMITS: Final = frozenset({"budget", "quota", "concurrency", "route", "operator", "lane_state"})
_ROUND: Final = Group(target=EXECUTION, flow_id="flow-1", n=1, succeeded=1, state="satisfied")
_CHILDREN: Final = Children("flow-1", (("edge-1", "child-1"), ("edge-2", "child-2")), _ROUND)
_REOPENED: Final = Reopening(GraphEdit(), 2)

RULES: Final[dict[str, Rule]] = {
    "renew": Rule(lambda r: renew(EXECUTION, FENCE, 45_000), "active"),
    "progress": Rule(lambda r: progress(EXECUTION, FENCE, 50, "half"), "active"),
    "complete": Rule(lambda r: complete(EXECUTION, FENCE, b"done", "json", "op-1"), "active"),
    "fail for good": Rule(lambda r: fail(r, FENCE, _FAILURE, 0.5, "op-1"), "active"),
    "fail and retry": Rule(lambda r: fail(r, FENCE, _FAILURE, 0.5, "op-1"), "active", RETRYING),
    "delay until": Rule(
        lambda r: delay(EXECUTION, FENCE, Timer(wake_at=NOW + 900), "op-1"), "active"
    ),
    "delay for": Rule(lambda r: delay(EXECUTION, FENCE, Timer(wake_in=900), "op-1"), "active"),
    "hand back": Rule(lambda r: delay(EXECUTION, FENCE, Timer(wake_in=0), "op-1"), "active"),
    "park": Rule(lambda r: park(EXECUTION, FENCE, None, "op-1"), "active"),
    "park on children": Rule(lambda r: park(EXECUTION, FENCE, _CHILDREN, "op-1"), "active"),
    "cancel by an operator": Rule(
        lambda r: cancel(EXECUTION, "no need", "operator_override", None), _LIVE
    ),
    "cancel by the flow": Rule(lambda r: cancel(EXECUTION, "flow", "flow_cascade", None), _LIVE),
    "cancel by its holder": Rule(
        lambda r: cancel(EXECUTION, "no need", "lease_holder", FENCE), "active"
    ),
    "cancel by anybody": Rule(
        lambda r: cancel(EXECUTION, "no need", "dashboard", None),
        "waiting delayed blocked suspended",
    ),
    "revoke": Rule(lambda r: revoke(r, "operator"), "active", decided=True),
    "block": Rule(lambda r: block(EXECUTION, Block("budget", "b-1", 5_000)), "waiting"),
    "hold": Rule(lambda r: block(EXECUTION, Block("operator", "wait")), "waiting"),
    "unblock": Rule(lambda r: unblock(EXECUTION, _LIMITS), "blocked"),
    "priority": Rule(lambda r: change_priority(r, 8_000), "waiting delayed blocked", decided=True),
    "grant": Rule(
        lambda r: grant(r, GrantTerms("pool", "pool-2", "grant-2", 5_000, "why")),
        "waiting lost",
        decided=True,
    ),
    "ungrant": Rule(ungrant, "waiting lost", decided=True),
    "exhaust": Rule(exhaust, "lost"),
    "replay": Rule(
        lambda r: replay(r, ReplayRequest("again", "ada"), Scene(NOW)),
        f"suspended {_FINAL}",
        decided=True,
    ),
    "restart": Rule(lambda r: restart(r, FENCE, NewInput(b"next", "json"), "op-1"), "active"),
    "replay a skipped member": Rule(
        lambda r: replay(r, ReplayRequest(), Scene(NOW, reopened=_REOPENED)), _FINAL, decided=True
    ),
    "tag": Rule(lambda r: set_tags(r, {"app.team": "red"}), f"{_LIVE} {_FINAL}"),
    "note": Rule(lambda r: note(EXECUTION, "last_capability_mismatch_at"), f"{_LIVE} {_FINAL}"),
    "expire": Rule(lambda r: expire(r, "execution_deadline"), _LIVE, decided=True),
    "time out": Rule(lambda r: time_out(r, 0.5), _LIVE, decided=True),
    "time out and retry": Rule(lambda r: time_out(r, 0.5), "active", TIMED, decided=True),
    "lose": Rule(lose, "active"),
    "promote": Rule(promote, "delayed", decided=True),
    "forget the delay": Rule(forget_delay, "blocked", decided=True),
    "release": Rule(lambda r: release_plan(r, NOW), "blocked suspended"),
    "skip": Rule(lambda r: skip_plan(EXECUTION), _LIVE),
    "cancel_sibling": Rule(
        lambda r: cancel_sibling_plan(EXECUTION, "sibling_quorum_satisfied"), _LIVE
    ),
}


def narrows(name: str, reason: str) -> bool:
    """Whether the rule also looks at why a record waits, and lets this reason through."""
    match name:
        case "unblock":
            return reason in _LIMITS
        case "release":
            return reason in ("dependencies", "first")
        case _:
            return True
