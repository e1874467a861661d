"""Random graphs, policies and ends: who runs, waits, is skipped or cut is what the book says."""

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from flowfabric.core import apply, settle
from tests.model.flows import flows_model_of
from tests.model.sides import STORES
from tests.stores import COMPARED

# The profile says how much is tried, and so how long that may take.
pytestmark = pytest.mark.timeout(10 * settings().max_examples)


@pytest.mark.parametrize("store", COMPARED)
@pytest.mark.parametrize("steps", ["large", "small"])
def test_flows_go_by_the_book(store: str, steps: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if steps == "small":
        monkeypatch.setattr(settle, "EDGES_PER_STEP", 2)
        monkeypatch.setattr(settle, "LOOKS_PER_STEP", 5)
        monkeypatch.setattr(settle, "PAGE", 2)
        monkeypatch.setattr(apply, "MEMBERS_PER_STEP", 2)
    # Each step is several acts, so a third of what the profile allows takes as long as the whole.
    third = settings(max_examples=settings().max_examples // 3)
    run_state_machine_as_test(flows_model_of(STORES[store]), settings=third)
