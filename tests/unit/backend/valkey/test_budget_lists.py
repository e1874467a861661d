"""Budgets know of their executions, whatever became of the answers."""

import pytest

from flowfabric.backend.valkey.calls import Calls
from tests.conformance.driver import Driver
from tests.conformance.limiting import attached, new_budget


async def test_a_submission_whose_answer_was_lost_is_listed_with_its_budget(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget_id = await new_budget(driver.engine, hard={"tokens": 1_000})
    sent = Calls.run

    async def twice(self: Calls, function: str, *words: object, **options: object) -> object:
        if function == "create":
            await sent(self, function, *words, **options)  # type: ignore[arg-type]
        return await sent(self, function, *words, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Calls, "run", twice)
    own = await driver.submit(policy={"budget_ids": [budget_id]})
    assert await attached(driver.engine, budget_id) == [own]
