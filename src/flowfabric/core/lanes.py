"""The states of a lane: whether it takes new work, and whether it hands work out."""

from typing import Final, Literal, get_args

LaneState = Literal["active", "paused", "draining", "disabled"]

LANE_STATES: Final[tuple[LaneState, ...]] = get_args(LaneState)
_ACCEPTING: Final = frozenset[str]({"active", "paused"})
_SERVING: Final = frozenset[str]({"active", "draining"})


def accepts_submissions(state: str) -> bool:
    return state in _ACCEPTING


def serves_claims(state: str) -> bool:
    """Whether workers are given the work that waits in the lane."""
    return state in _SERVING


def not_open(lane: str, state: str) -> str:
    """What people are told of a lane that turns them away."""
    return f"lane {lane} is {state}"
