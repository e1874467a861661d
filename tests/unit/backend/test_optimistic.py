"""The loop of every decision that reads before it writes."""

import asyncio

import pytest

from flowfabric.backend.optimistic import MOST_TRIES, WRITE_CONFLICT, WriteConflict, decide
from flowfabric.errors import RetryExhausted


class Rival:
    """Writes first, so many times."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.attempts = 0

    async def attempt(self) -> str | WriteConflict:
        self.attempts += 1
        if self.attempts <= self.left:
            return WRITE_CONFLICT
        return "applied"


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was paused, without a pause."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return found


async def test_a_decision_that_nobody_disturbs_is_made_once(pauses: list[float]) -> None:
    rival = Rival(0)
    assert await decide("execution", "x", rival.attempt) == "applied"
    assert (rival.attempts, pauses) == (1, [])


async def test_a_decision_is_made_again_until_nobody_came_between(pauses: list[float]) -> None:
    rival = Rival(MOST_TRIES - 1)
    assert await decide("execution", "x", rival.attempt, lambda: 1.0) == "applied"
    assert rival.attempts == MOST_TRIES
    assert pauses == [0.001, 0.002, 0.004, 0.008, 0.016, 0.016, 0.016]


async def test_who_always_comes_too_late_is_told_what_happened(pauses: list[float]) -> None:
    rival = Rival(MOST_TRIES)
    with pytest.raises(
        RetryExhausted, match="gave up after 8 conflicting writes to execution x; try again"
    ):
        await decide("execution", "x", rival.attempt)
    assert rival.attempts == MOST_TRIES
    assert len(pauses) == MOST_TRIES - 1


async def test_an_answer_of_nothing_is_an_answer(pauses: list[float]) -> None:
    async def nothing() -> None:
        return None

    assert await decide("lane", "default", nothing) is None  # type: ignore[func-returns-value]


async def test_chance_spreads_the_pauses(pauses: list[float]) -> None:
    await decide("execution", "x", Rival(2).attempt, lambda: 0.0)
    assert pauses == [0.0005, 0.001]


async def test_an_error_ends_the_decision(pauses: list[float]) -> None:
    async def fails() -> WriteConflict:
        raise ValueError("not to be decided")

    with pytest.raises(ValueError, match="not to be decided"):
        await decide("execution", "x", fails)
    assert pauses == []
