"""How endings are told: at once, together, and never held up by a report that takes long."""

import asyncio
from typing import Any, cast

import pytest

from flowfabric.worker import reporting as reporting_module
from flowfabric.worker.reporting import MOST_FINISHED, Ending, Reporting

SOON_S = 30.0


class Engine:
    """Takes reports, and answers them when it is told to."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.came = asyncio.Event()
        self._answers: list[asyncio.Event] = []

    async def report(self, batch: list[Ending]) -> None:
        self.batches.append([finish for _, finish in batch])
        answer = asyncio.Event()
        self._answers.append(answer)
        self.came.set()
        await answer.wait()

    def answer(self) -> None:
        self._answers.pop(0).set()

    async def reports(self, n: int) -> None:
        async with asyncio.timeout(SOON_S):
            while len(self.batches) < n:
                self.came.clear()
                await self.came.wait()


def put(reporting: Reporting, *finishes: object) -> None:
    for finish in finishes:
        reporting.put(cast(Any, None), cast(Any, finish))


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
async def reporting(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Reporting:
    monkeypatch.setattr(reporting_module, "_LATEST_S", 600.0)
    return Reporting(engine.report, lambda: None)


async def test_what_ends_in_one_turn_is_told_together_and_at_once(
    engine: Engine, reporting: Reporting
) -> None:
    put(reporting, 1, 2, 3)
    await engine.reports(1)
    assert engine.batches == [[1, 2, 3]]


async def test_a_few_wait_for_the_report_that_is_under_way(
    engine: Engine, reporting: Reporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting_module, "_LATEST_S", 600.0)
    put(reporting, 1)
    await engine.reports(1)
    put(reporting, 2)
    await asyncio.sleep(0)
    put(reporting, 3)
    await asyncio.sleep(0)
    assert engine.batches == [[1]]
    engine.answer()
    await engine.reports(2)
    assert engine.batches == [[1], [2, 3]]


async def test_many_are_told_beside_the_report_that_is_under_way(
    engine: Engine, reporting: Reporting
) -> None:
    put(reporting, 0)
    await engine.reports(1)
    put(reporting, *range(MOST_FINISHED + 5))
    await engine.reports(2)
    assert engine.batches[1] == [*range(MOST_FINISHED)]
    engine.answer()
    engine.answer()
    await engine.reports(3)
    assert engine.batches[2] == [*range(MOST_FINISHED, MOST_FINISHED + 5)]


async def test_a_report_that_takes_long_holds_nothing_up(
    engine: Engine, reporting: Reporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting_module, "_LATEST_S", 0.001)
    put(reporting, 1)
    await engine.reports(1)
    put(reporting, 2)
    await engine.reports(2)
    put(reporting, 3)
    await engine.reports(3)
    assert engine.batches == [[1], [2], [3]]


async def test_only_so_many_reports_are_under_way(engine: Engine, reporting: Reporting) -> None:
    most = reporting_module._MOST_REPORTS
    put(reporting, *range((most + 1) * MOST_FINISHED))
    await engine.reports(most)
    await asyncio.sleep(0)
    assert len(reporting.in_flight) == len(engine.batches) == most
    engine.answer()
    await engine.reports(most + 1)
