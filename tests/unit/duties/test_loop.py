"""When a duty visits: at a fixed rate, and sooner on a notification."""

import asyncio
from collections import defaultdict

import pytest

from flowfabric.app import close_engine, duties_of, open_engine
from flowfabric.backend.types import ConfigPut
from flowfabric.config import Settings, StoreUrl
from flowfabric.duties.loop import Duties, DutyLoop
from flowfabric.duties.result import DutyResult
from flowfabric.duties.sweep import _MOST_TRACKED, _UPKEEP_CYCLES, ItemBackoff
from flowfabric.telemetry.observer import Observer
from tests.jumping_loop import run_jumping

SETTINGS = Settings(
    store=StoreUrl("memory"), timer_sweep_interval_ms=3_600_000, retention_trimmer_interval_s=3_600
)


class _Visits(Observer):
    def __init__(self) -> None:
        self.at: dict[str, list[float]] = defaultdict(list)
        self.news = asyncio.Event()

    def cycled(self, duty: str, seconds: float) -> None:
        self.at[duty].append(asyncio.get_running_loop().time())
        self.news.set()


def test_a_changed_configuration_wakes_the_sweep_and_no_other_duty() -> None:
    async def main() -> None:
        visits = _Visits()
        engine = await open_engine(SETTINGS)
        duties = duties_of(engine, SETTINGS, visits)
        duties.start()
        await asyncio.sleep(3_600)
        before = {name: len(at) for name, at in visits.at.items()}
        assert before == {"timer_sweep": 1, "retention_trimmer": 1}
        visits.news.clear()
        for number in range(3):
            await engine.deps.store.backend.config_put([ConfigPut(f"schedule/{number}", 0, b"{}")])
        put_at = asyncio.get_running_loop().time()
        await visits.news.wait()
        await asyncio.sleep(1)
        woken_at = visits.at["timer_sweep"][1:]
        assert woken_at[0] == put_at
        # The others may have come during its visit.
        assert woken_at[1:] in ([], [pytest.approx(put_at + 0.1)])
        assert len(visits.at["retention_trimmer"]) == 1
        assert await duties.stop()
        await close_engine(engine)

    run_jumping(main())


class _Slow:
    name = "slow"

    def __init__(self, *seconds: float) -> None:
        self._seconds = iter(seconds)
        self.begun_at: list[float] = []
        self.is_over = asyncio.Event()

    async def visit(self) -> DutyResult:
        self.begun_at.append(asyncio.get_running_loop().time())
        seconds = next(self._seconds, None)
        if seconds is None:
            self.is_over.set()
        await asyncio.sleep(seconds or 0)
        return DutyResult()


def test_visits_come_at_a_fixed_rate_and_missed_ones_are_not_made_up() -> None:
    async def main() -> list[float]:
        duty = _Slow(0.25, 2.5, 0, 0)
        loop = DutyLoop(duty, 1)
        running = asyncio.create_task(loop.run())
        await duty.is_over.wait()
        loop.stop()
        await running
        first = duty.begun_at[0]
        assert first < 1
        return [round(at - first, 6) for at in duty.begun_at]

    assert run_jumping(main()) == [0, 1, 3.5, 4.5, 5.5]


def test_a_duty_that_is_stuck_is_abandoned_after_fifteen_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> tuple[bool, float]:
        stuck, quick = _Slow(10**6), _Slow(*[0.0] * 100)
        duties = Duties([DutyLoop(stuck, 1), DutyLoop(quick, 1)])
        duties.start()
        await asyncio.sleep(2)
        began = asyncio.get_running_loop().time()
        ended = await duties.stop()
        return ended, asyncio.get_running_loop().time() - began

    ended, took = run_jumping(main())
    assert not ended
    assert took <= 15
    (told,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert told == "duty slow did not stop in time; abandoned"


def test_first_visits_are_spread_over_the_interval() -> None:
    async def main() -> list[float]:
        duties = [_Slow() for _ in range(50)]
        loops = [DutyLoop(duty, 10) for duty in duties]
        running = [asyncio.create_task(loop.run()) for loop in loops]
        await asyncio.sleep(10)
        for loop in loops:
            loop.stop()
        await asyncio.gather(*running)
        return [duty.begun_at[0] for duty in duties]

    first = run_jumping(main())
    assert all(0 <= at < 10 for at in first)
    assert max(first) - min(first) > 3


def test_of_many_items_that_failed_only_those_left_alone_are_remembered() -> None:
    backoff = ItemBackoff("sweep")
    backoff.new_cycle()
    for _ in range(3):
        backoff.failed("always")
    for number in range(_MOST_TRACKED + 1):
        backoff.failed(f"once {number}")
        backoff.failed(f"once {number}")
    for _ in range(_UPKEEP_CYCLES):
        backoff.new_cycle()
    # Forgotten: a third failure now is a first one.
    backoff.failed("once 1")
    assert len(backoff) == 1
    assert not backoff.skips("once 1")
    for _ in range(2):
        backoff.failed("once 1")
    assert len(backoff) == 2
    assert backoff.skips("once 1")


def test_few_items_that_failed_are_remembered() -> None:
    backoff = ItemBackoff("sweep")
    backoff.failed("one")
    backoff.failed("one")
    for _ in range(_UPKEEP_CYCLES):
        backoff.new_cycle()
    backoff.failed("one")
    assert backoff.skips("one")
