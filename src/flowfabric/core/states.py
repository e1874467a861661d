"""The one state of an execution, its qualifiers, and the moves between states.

Everything people see (phase, ownership, eligibility, public state, …) is projected from these
three words by `facets`; nothing else about an execution's situation is stored. The states of a
lane say whether it takes new work and whether it hands work out.
"""

from typing import Final, Literal, get_args

from flowfabric.errors import Bug

State = Literal[
    "waiting",
    "delayed",
    "blocked",
    "active",
    "lost",
    "suspended",
    "completed",
    "failed",
    "cancelled",
    "expired",
    "skipped",
]
Next = Literal["", "first", "retry", "resume", "reclaim", "replay"]
AttemptType = Literal["", "initial", "retry", "reclaim", "replay"]
AttemptState = Literal[
    "started",
    "suspended",
    "ended_success",
    "ended_failure",
    "ended_cancelled",
    "interrupted_reclaimed",
]

RUNNABLE: Final = frozenset[State]({"waiting", "delayed", "blocked"})
HELD: Final = frozenset[State]({"active", "lost"})
CLAIMABLE: Final = frozenset[State]({"waiting", "lost"})
FINAL: Final = frozenset[State]({"completed", "failed", "cancelled", "expired", "skipped"})
LIVE: Final = frozenset[State](RUNNABLE | HELD | {"suspended"})
STATES: Final = frozenset[State](LIVE | FINAL)

DELAY_REASONS: Final = frozenset({"delay", "retry_backoff", "resume_delay"})
LIMIT_REASONS: Final = frozenset({"budget", "quota", "concurrency"})
HOLD_REASONS: Final = frozenset({"route", "operator", "lane_state"})
# What the passing of time may lift; the other holds wait for a person.
LIFTED_BY_TIME: Final = LIMIT_REASONS | {"route"}
BLOCK_REASONS: Final = LIMIT_REASONS | HOLD_REASONS | {"dependencies", "flow_cancel"}
LOST_REASONS: Final = frozenset({"lease_expired", "lease_revoked"})
# Of a suspension that ends with the first of several: one of its ways to end is an edge.
FIRST: Final = "first"

# What a claim of each `next` makes of the attempt. A resume continues the one there is.
ATTEMPT_TYPES: Final[dict[str, AttemptType]] = {
    "first": "initial",
    "retry": "retry",
    "replay": "replay",
    "reclaim": "reclaim",
}

OUTCOMES: Final[dict[str, str]] = {
    "completed": "success",
    "failed": "failed",
    "cancelled": "cancelled",
    "expired": "expired",
    "skipped": "skipped",
}

PUBLIC_BLOCKED: Final[dict[str, str]] = {
    "dependencies": "waiting_children",
    "budget": "rate_limited",
    "quota": "rate_limited",
    "concurrency": "rate_limited",
}


def public_state(state: str, reason: str) -> str:
    """The state as users see it; total, and independent of who asks."""
    if state == "blocked":
        return PUBLIC_BLOCKED.get(reason, "waiting")
    return "active" if state == "lost" else state


PUBLIC_STATES: Final = (
    "waiting",
    "delayed",
    "rate_limited",
    "waiting_children",
    "active",
    "suspended",
    "completed",
    "failed",
    "cancelled",
    "expired",
    "skipped",
)


def _stays(*states: State) -> frozenset[tuple[str, str]]:
    return frozenset((state, state) for state in states)


def _to(sources: frozenset[State], *targets: State) -> frozenset[tuple[str, str]]:
    return frozenset((source, target) for source in sources for target in targets)


_ACTIVE: Final = frozenset[State]({"active"})
_SUSPENDED: Final = frozenset[State]({"suspended"})

# Every legal (rule, from, to). A plan outside this table is a fault of the engine, not of a caller.
MOVES: Final[dict[str, frozenset[tuple[str, str]]]] = {
    "claim": _to(CLAIMABLE, "active"),
    "renew": _stays("active"),
    "progress": _stays("active"),
    "complete": _to(_ACTIVE, "completed"),
    "fail": _to(_ACTIVE, "delayed", "failed"),
    "delay": _to(_ACTIVE, "delayed", "waiting"),
    "park": _to(_ACTIVE, "blocked"),
    "restart": _to(_ACTIVE, "waiting"),
    "suspend": _to(_ACTIVE, "suspended", "active"),
    "cancel": _to(LIVE, "cancelled"),
    "expire": _to(LIVE, "expired") | _to(_ACTIVE, "delayed"),
    "lose": _to(_ACTIVE, "lost"),
    "revoke": _to(_ACTIVE, "lost"),
    "exhaust": _to(frozenset({"lost"}), "failed"),
    "promote": _to(frozenset({"delayed"}), "waiting"),
    "block": _to(frozenset({"waiting"}), "blocked"),
    "unblock": _to(frozenset({"blocked"}), "waiting"),
    "recheck": _stays("blocked"),
    "release": _to(frozenset({"blocked"}), "waiting", "delayed") | _to(_SUSPENDED, "waiting"),
    "priority": _stays("waiting", "delayed", "blocked"),
    "replay": _to(FINAL, "waiting", "blocked") | _to(_SUSPENDED, "waiting"),
    "grant": _stays("waiting", "lost"),
    "ungrant": _stays("waiting", "lost"),
    "signal": _stays(*LIVE) | _to(_SUSPENDED, "waiting", "delayed"),
    "resume": _to(_SUSPENDED, "waiting", "delayed"),
    "timeout": _to(_SUSPENDED, "failed", "cancelled", "expired", "waiting", "suspended"),
    "waitpoint": _stays(*LIVE),
    "skip": _to(LIVE, "skipped"),
    "cancel_sibling": _to(LIVE, "cancelled"),
    "cancel_child": _to(LIVE, "cancelled"),
    "await_edge": _to(RUNNABLE, "blocked"),
    "join": _stays(*STATES),
    "tag": _stays(*STATES),
    "note": _stays(*STATES),
}


def is_move(rule: str, source: str, target: str) -> bool:
    return (source, target) in MOVES.get(rule, frozenset())


def not_a_move(rule: str, source: str, target: str) -> Bug:
    return Bug(f"{rule}: {source} -> {target} is not a move")


# ---- lanes

LaneState = Literal["active", "paused", "draining", "disabled"]

LANE_STATES: Final[tuple[LaneState, ...]] = get_args(LaneState)
accepts_submissions: Final = frozenset[str]({"active", "paused"}).__contains__
# Whether workers are given the work that waits in the lane.
serves_claims: Final = frozenset[str]({"active", "draining"}).__contains__


def not_open(lane: str, state: str) -> str:
    """The refusal of a lane that takes no work, or hands none out."""
    return f"lane {lane} is {state}"
