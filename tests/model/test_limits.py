"""Random spending, starting, dying: no limit is ever passed, and nothing is ever leaked."""

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.limits import limits_model_of
from tests.model.sides import STORES
from tests.stores import COMPARED

# The profile says how much is tried, and so how long that may take.
pytestmark = pytest.mark.timeout(10 * settings().max_examples)


@pytest.mark.parametrize("store", COMPARED)
def test_limits_are_never_passed_and_never_leak(store: str) -> None:
    run_state_machine_as_test(limits_model_of(STORES[store]))
