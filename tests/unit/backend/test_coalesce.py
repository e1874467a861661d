"""What waits for the end of a turn to go together, and what goes at once."""

import asyncio
from collections.abc import Sequence

import pytest

from flowfabric.backend.base import Answered
from flowfabric.backend.coalesce import Gatherer
from flowfabric.errors import InvalidInput


class Store:
    """Answers when it is told to; what is negative is refused."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.may_answer = asyncio.Event()

    async def run(self, items: Sequence[int]) -> list[Answered[int]]:
        self.calls.append([*items])
        await self.may_answer.wait()
        return [InvalidInput("negative") if item < 0 else -item for item in items]


async def test_what_comes_in_one_turn_goes_together() -> None:
    store = Store()
    store.may_answer.set()
    gatherer = Gatherer(store.run, most=3)
    assert await asyncio.gather(*map(gatherer.submit, range(5))) == [0, -1, -2, -3, -4]
    assert store.calls == [[0, 1, 2], [3, 4]]


async def test_what_lies_in_different_places_goes_apart() -> None:
    store = Store()
    store.may_answer.set()
    gatherer = Gatherer(store.run, most=2, place=lambda item: item % 2)
    await asyncio.gather(*map(gatherer.submit, range(6)))
    assert store.calls == [[0, 2], [1, 3], [4], [5]]


async def test_what_is_prompt_goes_at_once_and_what_comes_meanwhile_together() -> None:
    store = Store()
    gatherer = Gatherer(store.run)
    tasks = [asyncio.create_task(gatherer.submit_promptly(item)) for item in range(4)]
    await asyncio.sleep(0)
    assert store.calls == [[0]]
    store.may_answer.set()
    assert await asyncio.gather(*tasks) == [0, -1, -2, -3]
    assert store.calls == [[0], [1, 2, 3]]
    assert await gatherer.submit_promptly(4) == -4
    assert store.calls[2:] == [[4]]


async def test_what_is_prompt_gets_its_own_error() -> None:
    store = Store()
    store.may_answer.set()
    gatherer = Gatherer(store.run)
    with pytest.raises(InvalidInput):
        await gatherer.submit_promptly(-1)


async def test_a_batch_in_flight_is_sent_although_nobody_waits() -> None:
    store = Store()
    gatherer = Gatherer(store.run)
    left, stays = gatherer.submit(1), gatherer.submit(2)
    left.cancel()
    store.may_answer.set()
    assert await stays == -2
    assert store.calls == [[1, 2]]
