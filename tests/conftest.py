"""Fixtures shared by all suites."""

import pytest
from hypothesis import HealthCheck, settings

from tests.clock import VirtualClock

settings.register_profile(
    "quick",
    # The same examples on every run: a failure here is a change, not luck. `make model` explores.
    derandomize=True,
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile(
    "long",
    max_examples=1_000,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("quick")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()
