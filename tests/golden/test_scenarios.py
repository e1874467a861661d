"""Whole mechanisms on Valkey come to what the reference comes to, call by call."""

import pytest

from tests.golden.scenarios import SCENARIOS, Scenario, trace_of
from tests.model.sides import agree


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
async def test_valkey_comes_to_what_the_reference_comes_to(scenario: Scenario) -> None:
    expected = await trace_of(scenario, "memory")
    agree(str(scenario), expected, await trace_of(scenario, "valkey"))
