"""Backoff: pauses that double, have a limit and are spread."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.backoff import Backoff

BACKOFF = Backoff(0.05, 1.0)


@pytest.mark.parametrize(
    ("failures", "pause"),
    [(1, 0.05), (2, 0.1), (3, 0.2), (4, 0.4), (5, 0.8), (6, 1.0), (7, 1.0), (10_000, 1.0)],
)
def test_a_pause_doubles_up_to_the_longest(failures: int, pause: float) -> None:
    assert BACKOFF.pause_s(failures) == pytest.approx(pause)


@pytest.mark.parametrize(("chance", "pause"), [(0.0, 0.1), (0.5, 0.15), (1.0, 0.2)])
def test_chance_spreads_a_pause_over_its_upper_half(chance: float, pause: float) -> None:
    assert BACKOFF.pause_s(3, chance) == pytest.approx(pause)


def test_a_backoff_may_be_none_at_all() -> None:
    assert Backoff(0, 0).pause_s(9, 0.7) == 0


@given(
    st.floats(0, 1e6), st.floats(0, 1e6), st.integers(1, 2**63), st.floats(0, 1, allow_nan=False)
)
def test_no_pause_is_longer_than_the_longest(
    first: float, longest: float, failures: int, chance: float
) -> None:
    assert 0 <= Backoff(first, longest).pause_s(failures, chance) <= longest
