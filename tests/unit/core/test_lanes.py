"""Lane states, cell by cell: what each of them lets in and hands out."""

import pytest

from flowfabric.core.states import LANE_STATES, accepts_submissions, serves_claims

# Whether the lane takes submissions, and whether its work is claimed.
CELLS = {
    "active": (True, True),
    "paused": (True, False),
    "draining": (False, True),
    "disabled": (False, False),
}


@pytest.mark.parametrize("state", LANE_STATES)
def test_a_lane_state_decides_about_submissions_and_claims(state: str) -> None:
    assert (accepts_submissions(state), serves_claims(state)) == CELLS[state]


def test_every_lane_state_has_its_cell() -> None:
    assert set(LANE_STATES) == set(CELLS)


def test_a_state_nobody_knows_takes_nothing_and_hands_nothing_out() -> None:
    assert not accepts_submissions("closed")
    assert not serves_claims("closed")
