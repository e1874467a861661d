"""Notifications inside a process: what counts as one, and to whom."""

import asyncio

import pytest

from flowfabric.backend.notifier import LocalNotifier, LocalSubscription

SOON_S = 30.0


@pytest.fixture
def notifier() -> LocalNotifier:
    return LocalNotifier()


async def listening_to(notifier: LocalNotifier, name: str) -> LocalSubscription:
    """As a store's notifier does whose channel is not confirmed yet."""
    subscription = notifier.subscribe(name)
    subscription.confirmed = asyncio.get_running_loop().create_future()
    return subscription


async def test_a_notification_between_two_waits_is_remembered(notifier: LocalNotifier) -> None:
    subscription = notifier.subscribe("end:1")
    notifier.notify("end:1")
    assert await subscription.wait(SOON_S)
    assert not subscription.is_notified


async def test_that_rings_are_heard_is_no_ring_to_those_who_have_yet_to_look(
    notifier: LocalNotifier,
) -> None:
    early, late = notifier.subscribe("end:1"), notifier.subscribe("end:1")
    notifier.confirm("end:1")
    assert not await early.wait_before_read(0)
    waiting = asyncio.ensure_future(late.wait_before_read(SOON_S))
    await asyncio.sleep(0)
    notifier.confirm("end:1")
    await asyncio.sleep(0)
    assert not waiting.done()
    notifier.notify("end:1")
    assert await waiting
    notifier.confirm("end:1")
    assert await late.wait(SOON_S)


async def test_who_stops_listening_waits_no_longer(notifier: LocalNotifier) -> None:
    subscription = notifier.subscribe("end:1")
    waiting = asyncio.ensure_future(subscription.wait(SOON_S))
    await asyncio.sleep(0)
    subscription.close()
    assert not await waiting
    assert subscription.is_closed
    assert not await subscription.wait(None)


async def test_a_confirmation_notifies_those_who_have_read(notifier: LocalNotifier) -> None:
    for name in ("end:1", "lane:default:default"):
        subscription = await listening_to(notifier, name)
        notifier.confirm(name)
        assert await subscription.wait(SOON_S)


async def test_that_rings_are_heard_is_no_ring_to_those_who_waited_for_it(
    notifier: LocalNotifier,
) -> None:
    subscription = await listening_to(notifier, "end:1")
    notifier.confirm("end:1")
    assert subscription.confirmed is not None
    subscription.confirmed.set_result(None)
    await subscription.wait_subscribed(SOON_S)
    assert not subscription.is_notified


@pytest.mark.parametrize("order", [("confirm", "notify"), ("notify", "confirm")])
async def test_a_ring_that_came_with_the_confirmation_is_kept(
    notifier: LocalNotifier, order: tuple[str, str]
) -> None:
    subscription = await listening_to(notifier, "end:1")
    for what in order:
        getattr(notifier, what)("end:1")
    assert subscription.confirmed is not None
    subscription.confirmed.set_result(None)
    await subscription.wait_subscribed(SOON_S)
    assert subscription.is_notified


async def test_nobody_waits_longer_than_asked_for_a_confirmation(notifier: LocalNotifier) -> None:
    subscription = await listening_to(notifier, "end:1")
    async with asyncio.timeout(SOON_S):
        await subscription.wait_subscribed(0.001)
    assert not subscription.is_notified
