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
