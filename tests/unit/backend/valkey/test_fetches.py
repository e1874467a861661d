"""Reads of many executions at once: how they are divided among calls."""

from typing import Any

import pytest

from flowfabric.backend.valkey import fan_out
from flowfabric.backend.valkey.calls import Calls
from tests.conformance.driver import Driver

Reads = list[tuple[str, ...]]


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> list[Reads]:
    """The reads of each call, of which one may have no more than three."""
    made: list[Reads] = []
    run = Calls.run

    async def recording(self: Calls, function: str, key: str, *request: Any, **options: Any) -> Any:
        if function == "fetch":
            made.append(request[0])
        return await run(self, function, key, *request, **options)

    monkeypatch.setattr(fan_out, "MOST_READS", 3)
    monkeypatch.setattr(Calls, "run", recording)
    return made


async def test_a_record_and_its_documents_are_read_in_one_call(
    driver: Driver, fetches: list[Reads]
) -> None:
    ids = [await driver.submit() for _ in range(5)]
    fetches.clear()
    backend = driver.engine.deps.store.backend
    seen = await backend.read(ids, frozenset(), dict.fromkeys(ids, ("suspension",)))
    assert [one.record.execution_id for one in seen if one] == ids
    assert [[read[1][-36:] for read in reads] for reads in fetches] == [
        [own[-36:], own[-36:]] for own in ids
    ]
