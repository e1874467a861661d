"""Calls that overlap come to the same as the same calls in some order, one after the other."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.clock import VirtualClock
from tests.model.histories import KINDS, Call, History, Search, end_of, furnish, observe
from tests.model.sides import STORES
from tests.stores import COMPARED

# The profile says how much is tried, and so how long that may take.
pytestmark = pytest.mark.timeout(5 * settings().max_examples)
_calls: Final = st.lists(st.sampled_from(sorted(KINDS)), max_size=2)


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Three clients, at most six calls in all, each call with a number of its own."""
    kinds = [draw(_calls) for _ in range(3)]
    return [
        [Call(kind, 2 * client + place) for place, kind in enumerate(mine)]
        for client, mine in enumerate(kinds)
    ]


async def explained(store: str, history: History, pauses: list[int]) -> bool:
    """Whether some order of the calls explains what the clients of a store saw."""
    with TemporaryDirectory() as directory:
        backend = STORES[store](VirtualClock(), Path(directory))
        await backend.prepare()
        try:
            await furnish(backend)
            answers = await observe(backend, history, pauses)
            end = await end_of(backend)
            assert await backend.verify() == []
        finally:
            await backend.close()
    return await Search(history, answers, end).order() is not None


@pytest.mark.parametrize("store", COMPARED)
@given(histories(), st.lists(st.integers(0, 3), min_size=3, max_size=3))
def test_overlapping_calls_equal_some_sequence(
    store: str, history: History, pauses: list[int]
) -> None:
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        assert runner.run(explained(store, history, pauses))


RACES: Final[list[list[list[str]]]] = [
    [["claim one"], ["claim one"], ["claim two"]],
    [["complete", "claim one"], ["cancel the held"], ["renew", "read the held"]],
    [["finish and claim"], ["hand back"], ["claim two", "count"]],
    [["take the first"], ["block", "unblock"], ["cancel the first"]],
    [["complete the source"], ["read the target"], ["claim two", "read the target"]],
    [["create with one key"], ["create with one key"], ["create with one key", "count"]],
    [["create with one id"], ["create with one id"], ["claim one"]],
    [["append", "append"], ["complete"], ["append"]],
    [["journal"], ["journal"], ["journal", "hand back"]],
    [["register"], ["register"], ["configure", "configure"]],
]


@pytest.mark.parametrize("store", COMPARED)
@pytest.mark.parametrize("race", RACES, ids=lambda race: " | ".join(map("+".join, race)))
async def test_a_race_has_one_winner(store: str, race: list[list[str]]) -> None:
    history = [
        [Call(kind, 2 * client + place) for place, kind in enumerate(mine)]
        for client, mine in enumerate(race)
    ]
    assert await explained(store, history, [0, 0, 0])


async def test_answers_no_order_explains_are_noticed() -> None:
    """Two claims that were given the same execution."""
    history = [[Call("take the first", 0)], [Call("take the first", 1)]]
    with TemporaryDirectory() as directory:
        backend = STORES["memory"](VirtualClock(), Path(directory))
        await furnish(backend)
        answers = await observe(backend, history, [0, 0])
        end = await end_of(backend)
    assert await Search(history, answers, end).order() is not None
    doubled = [answers[0], answers[0]]
    assert await Search(history, doubled, end).order() is None
    assert await Search(history, answers, end | {"counts": {}}).order() is None
