"""A pool of permits: no waiting, a hint when to come back, and an end that waits for all."""

import asyncio
from contextlib import ExitStack

import pytest

from flowfabric.engine.permits import Permits
from flowfabric.errors import ResourceExhausted, Unavailable


@pytest.mark.parametrize(("size", "retry_after_ms"), [(1, 25), (2, 50), (64, 1_600)])
def test_who_finds_none_free_is_told_when_to_come_back(size: int, retry_after_ms: int) -> None:
    permits = Permits("stream_ops", size)
    with ExitStack() as taken:
        for _ in range(size):
            taken.enter_context(permits)
        with pytest.raises(ResourceExhausted) as caught, permits:
            pass
    assert caught.value.details == {
        "pool": "stream_ops",
        "max": size,
        "retry_after_ms": retry_after_ms,
    }
    assert caught.value.status == 429
    assert caught.value.retryable
    assert permits.available == size


def test_a_permit_comes_back_whatever_happened() -> None:
    permits = Permits("stream_ops", 1)
    with pytest.raises(ZeroDivisionError), permits:
        1 / 0  # noqa: B018
    assert permits.available == 1


async def test_a_closed_pool_gives_nothing_out_and_waits_for_what_is_out() -> None:
    permits = Permits("stream_ops", 2)
    with permits:
        permits.close()
        assert permits.is_closed
        with pytest.raises(Unavailable), permits:
            pass
        assert not await permits.returned(0.001)
        waiting = asyncio.ensure_future(permits.returned(20))
    assert await waiting


async def test_an_unused_pool_closes_at_once() -> None:
    permits = Permits("stream_ops", 2)
    permits.close()
    assert await permits.returned(20)


def test_each_caller_may_have_as_many_as_are_free() -> None:
    permits = Permits("sse_streams", 12)
    taken = {name: _take_all(permits, name) for name in ("first", "second", "third")}
    assert taken == {"first": 6, "second": 3, "third": 2}
    permits.enter("fourth")
    with pytest.raises(ResourceExhausted):
        permits.enter("fifth")
    for _ in range(6):
        permits.leave("first")
    assert _take_all(permits, "second") == 2
    assert _take_all(permits, "") == 4


def _take_all(permits: Permits, caller: str) -> int:
    """Until one is refused."""
    for number in range(100):
        try:
            permits.enter(caller)
        except ResourceExhausted:
            return number
    raise AssertionError("the pool has no end")


def test_the_refusal_of_a_caller_says_how_many_it_has() -> None:
    permits = Permits("sse_streams", 4)
    assert _take_all(permits, "greedy") == 2
    with pytest.raises(ResourceExhausted, match="2 of them yours, server max: 4"):
        permits.enter("greedy")
    permits.enter("modest")
