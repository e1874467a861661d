"""Doorbells inside a process: what counts as a ring, and to whom."""

import asyncio

import pytest

from flowfabric.backend.bells import LocalBells, LocalListening

SOON_S = 30.0


@pytest.fixture
def bells() -> LocalBells:
    return LocalBells()


async def listening_to(bells: LocalBells, name: str) -> LocalListening:
    """As a store's bells do whose channel is not confirmed yet."""
    listening = bells.listen(name)
    listening.heard = asyncio.get_running_loop().create_future()
    return listening


async def test_a_ring_between_two_waits_is_remembered(bells: LocalBells) -> None:
    listening = bells.listen("end:1")
    bells.ring("end:1")
    assert await listening.wait(SOON_S)
    assert not listening.is_rung


async def test_that_rings_are_heard_is_no_ring_to_those_who_have_yet_to_look(
    bells: LocalBells,
) -> None:
    early, late = bells.listen("end:1"), bells.listen("end:1")
    bells.confirm("end:1")
    assert not await early.wait_unlooked(0)
    waiting = asyncio.ensure_future(late.wait_unlooked(SOON_S))
    await asyncio.sleep(0)
    bells.confirm("end:1")
    await asyncio.sleep(0)
    assert not waiting.done()
    bells.ring("end:1")
    assert await waiting
    bells.confirm("end:1")
    assert await late.wait(SOON_S)


async def test_who_stops_listening_waits_no_longer(bells: LocalBells) -> None:
    listening = bells.listen("end:1")
    waiting = asyncio.ensure_future(listening.wait(SOON_S))
    await asyncio.sleep(0)
    listening.close()
    assert not await waiting
    assert listening.is_closed
    assert not await listening.wait(None)


async def test_that_rings_are_heard_is_a_ring_to_those_who_have_looked(bells: LocalBells) -> None:
    for name in ("end:1", "lane:default:default"):
        listening = await listening_to(bells, name)
        bells.confirm(name)
        assert await listening.wait(SOON_S)


async def test_that_rings_are_heard_is_no_ring_to_those_who_waited_for_it(
    bells: LocalBells,
) -> None:
    listening = await listening_to(bells, "end:1")
    bells.confirm("end:1")
    assert listening.heard is not None
    listening.heard.set_result(None)
    await listening.begun(SOON_S)
    assert not listening.is_rung


@pytest.mark.parametrize("order", [("confirm", "ring"), ("ring", "confirm")])
async def test_a_ring_that_came_with_the_confirmation_is_kept(
    bells: LocalBells, order: tuple[str, str]
) -> None:
    listening = await listening_to(bells, "end:1")
    for what in order:
        getattr(bells, what)("end:1")
    assert listening.heard is not None
    listening.heard.set_result(None)
    await listening.begun(SOON_S)
    assert listening.is_rung


async def test_nobody_waits_longer_than_asked_for_rings_to_be_heard(bells: LocalBells) -> None:
    listening = await listening_to(bells, "end:1")
    async with asyncio.timeout(SOON_S):
        await listening.begun(0.001)
    assert not listening.is_rung
