"""Random calls against a store and the reference: whatever happens, both show the same."""

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import model_of
from tests.model.sides import STORES
from tests.stores import COMPARED

# The profile says how much is tried, and so how long that may take.
pytestmark = pytest.mark.timeout(10 * settings().max_examples)


@pytest.mark.parametrize("store", COMPARED)
def test_a_store_behaves_like_the_reference(store: str) -> None:
    run_state_machine_as_test(model_of(STORES[store]))
