"""Reservations: amounts set aside before they are spent."""

import asyncio
from typing import Any

import pytest

from flowfabric.engine import Engine, engine_on
from flowfabric.errors import BudgetNotFound, InvalidInput
from flowfabric.operations.budgets import (
    AlreadyApplied,
    Budgets,
    HardBreach,
    NewReservation,
    Ok,
    Reserved,
    SoftBreach,
)
from tests.conformance.driver import Driver, refused
from tests.conformance.limiting import (
    SOME_BUDGET,
    new_budget,
    report,
    usage,
)
from tests.proofs import proves

DAY_MS = 86_400_000
TTL_MS = 10_000
OK, AGAIN = Ok(), AlreadyApplied()


def asked(
    budget_id: str, name: str = "r", ttl_ms: int = TTL_MS, **amounts: int
) -> tuple[str, NewReservation]:
    return budget_id, NewReservation(reservation_id=name, dimensions=amounts, ttl_ms=ttl_ms)


async def reserved(engine: Engine, budget_id: str) -> dict[str, int]:
    return (await engine.budgets.get_budget_status(budget_id)).reserved


@proves(Budgets.reserve)
async def test_what_is_held_counts_against_reports_but_is_not_used(driver: Driver) -> None:
    engine = driver.engine
    budget_id = await new_budget(engine, {"t": 10})
    answer = await engine.reservations.reserve(*asked(budget_id, t=7))
    assert answer == Reserved(driver.clock() + TTL_MS)
    assert (await usage(engine, budget_id), await reserved(engine, budget_id)) == ({}, {"t": 7})
    assert (await report(engine, budget_id, t=4)).outcome == "hard_breach"
    assert await report(engine, budget_id, t=3) == OK


async def test_a_reservation_is_refused_like_a_report(engine: Engine) -> None:
    budget_id = await new_budget(engine, {"t": 10})
    await report(engine, budget_id, t=5)
    assert await engine.reservations.reserve(*asked(budget_id, t=6)) == HardBreach(
        budget_id=budget_id, dimension="t", current_usage=5, hard_limit=10
    )
    assert (await engine.budgets.get_budget_status(budget_id)).breach_count == 1
    assert isinstance(await engine.reservations.reserve(*asked(budget_id, t=5)), Reserved)


async def test_a_repeated_reserve_counts_once(engine: Engine) -> None:
    budget_id = await new_budget(engine, {"t": 10})
    await engine.reservations.reserve(*asked(budget_id, t=7))
    assert await engine.reservations.reserve(*asked(budget_id, t=7)) == AGAIN
    assert await reserved(engine, budget_id) == {"t": 7}


@proves(Budgets.commit_reservation)
@pytest.mark.parametrize(("actual", "used"), [(7, 7), (3, 3), (0, 0), (10, 10)])
async def test_a_commit_counts_what_was_really_spent(
    engine: Engine, actual: int, used: int
) -> None:
    budget_id = await new_budget(engine, {"t": 10})
    await engine.reservations.reserve(*asked(budget_id, t=7))
    for expected in (OK, AGAIN, AGAIN):
        assert await engine.reservations.commit(budget_id, "r", {"t": actual}) == expected
        assert await usage(engine, budget_id) == {"t": used}
        assert await reserved(engine, budget_id) == {}


async def test_more_than_was_held_is_judged_and_the_reservation_stays(engine: Engine) -> None:
    budget_id = await new_budget(engine, {"t": 10})
    await engine.reservations.reserve(*asked(budget_id, t=7))
    await report(engine, budget_id, t=2)
    breach = await engine.reservations.commit(budget_id, "r", {"t": 9})
    assert isinstance(breach, HardBreach)
    assert breach.current_usage == 2
    assert await reserved(engine, budget_id) == {"t": 7}
    assert await engine.reservations.commit(budget_id, "r", {"t": 8}) == OK
    assert await usage(engine, budget_id) == {"t": 10}


async def test_within_what_was_held_nothing_is_refused(engine: Engine) -> None:
    budget_id = await new_budget(engine, {"t": 10})
    await engine.reservations.reserve(*asked(budget_id, t=7))
    await engine.budgets.change_limits(budget_id, {"t": 3}, {})
    assert await engine.reservations.commit(budget_id, "r", {"t": 5}) == OK
    assert await usage(engine, budget_id) == {"t": 5}


async def test_a_commit_warns_like_a_report(engine: Engine) -> None:
    budget_id = await new_budget(engine, {}, {"t": 3})
    await engine.reservations.reserve(*asked(budget_id, t=7))
    answer = await engine.reservations.commit(budget_id, "r", {"t": 4})
    assert isinstance(answer, SoftBreach)
    assert (answer.current_usage, answer.soft_limit) == (4, 3)


@proves(Budgets.cancel_reservation)
async def test_a_cancelled_reservation_is_gone_and_stays_gone(engine: Engine) -> None:
    budget_id = await new_budget(engine, {"t": 10})
    await engine.reservations.reserve(*asked(budget_id, t=7))
    assert await engine.reservations.cancel(budget_id, "r") == OK
    assert await engine.reservations.cancel(budget_id, "r") == AGAIN
    assert await engine.reservations.reserve(*asked(budget_id, t=7)) == AGAIN
    assert (await usage(engine, budget_id), await reserved(engine, budget_id)) == ({}, {})
    assert await engine.reservations.cancel(budget_id, "never was") == AGAIN


async def test_what_was_spent_counts_once_even_if_the_reservation_was_cancelled(
    engine: Engine,
) -> None:
    """A handler that is tried again left the block of its reservation, which cancelled it."""
    budget_id = await new_budget(engine, {"t": 10})
    await engine.reservations.reserve(*asked(budget_id, t=7))
    await engine.reservations.cancel(budget_id, "r")
    assert await engine.reservations.commit(budget_id, "r", {"t": 6}) == OK
    assert await engine.reservations.commit(budget_id, "r", {"t": 6}) == AGAIN
    assert await engine.reservations.cancel(budget_id, "r") == AGAIN
    assert (await usage(engine, budget_id), await reserved(engine, budget_id)) == ({"t": 6}, {})
    other = await engine.reservations.reserve(*asked(budget_id, "other", t=4))
    assert isinstance(other, Reserved)
    await engine.reservations.cancel(budget_id, "other")
    late = await engine.reservations.commit(budget_id, "other", {"t": 5})
    assert late.outcome == "hard_breach"


async def test_a_reservation_that_ended_is_given_back_once_when_limits_change(
    driver: Driver,
) -> None:
    engine = driver.engine
    budget_id = await new_budget(engine, {"t": 10})
    await engine.reservations.reserve(*asked(budget_id, "short", t=4))
    await engine.reservations.reserve(*asked(budget_id, "long", ttl_ms=9 * TTL_MS, t=5))
    driver.clock.advance(TTL_MS)
    await engine.budgets.change_limits(budget_id, {"t": 11}, {})
    assert await reserved(engine, budget_id) == {"t": 5}
    assert await report(engine, budget_id, t=1) == OK
    assert await reserved(engine, budget_id) == {"t": 5}
    assert (await report(engine, budget_id, t=6)).outcome == "hard_breach"


async def test_an_unfinished_reservation_ends_by_itself(driver: Driver) -> None:
    engine = driver.engine
    budget_id = await new_budget(engine, {"t": 10})
    await engine.reservations.reserve(*asked(budget_id, t=7))
    driver.clock.advance(TTL_MS - 1)
    assert await reserved(engine, budget_id) == {"t": 7}
    driver.clock.advance(1)
    assert await reserved(engine, budget_id) == {}
    assert await report(engine, budget_id, t=10) == OK


async def test_the_timer_drops_reservations_nobody_asks_about(driver: Driver) -> None:
    engine = driver.engine
    budget_id = await new_budget(engine, {"t": 10})
    await engine.reservations.reserve(*asked(budget_id, "first", t=3))
    await engine.reservations.reserve(*asked(budget_id, "second", ttl_ms=2 * TTL_MS, t=4))
    page = await engine.deps.store.backend.due(10)
    assert page.budgets == ()
    result = await driver.pass_time(TTL_MS)
    assert (result.of("timer_sweep"), result.of("budget_reset")) == (1, 0)
    assert await reserved(engine, budget_id) == {"t": 4}
    await driver.pass_time(TTL_MS)
    assert await reserved(engine, budget_id) == {}
    assert (await driver.sweep()).total("processed") == 0


async def test_what_was_spent_counts_even_if_the_reservation_had_ended(driver: Driver) -> None:
    engine = driver.engine
    budget_id = await new_budget(engine, {"t": 10})
    await engine.reservations.reserve(*asked(budget_id, t=7))
    driver.clock.advance(TTL_MS)
    assert await engine.reservations.commit(budget_id, "r", {"t": 6}) == OK
    assert await engine.reservations.commit(budget_id, "r", {"t": 6}) == AGAIN
    assert await usage(engine, budget_id) == {"t": 6}
    late = await engine.reservations.commit(budget_id, "unknown", {"t": 6})
    assert late.outcome == "hard_breach"


async def test_a_name_is_free_again_a_day_after_it_was_finished(driver: Driver) -> None:
    engine = driver.engine
    budget_id = await new_budget(engine, {"t": 10})
    await engine.reservations.reserve(*asked(budget_id, t=7))
    await engine.reservations.commit(budget_id, "r", {"t": 1})
    driver.clock.advance(DAY_MS - 1)
    assert await engine.reservations.reserve(*asked(budget_id, t=7)) == AGAIN
    driver.clock.advance(1)
    assert isinstance(await engine.reservations.reserve(*asked(budget_id, t=7)), Reserved)


async def test_a_reservation_outlives_a_reset(engine: Engine) -> None:
    budget_id = await new_budget(engine, {"t": 10})
    await engine.reservations.reserve(*asked(budget_id, t=7))
    await report(engine, budget_id, t=3)
    await engine.budgets.reset_budget(budget_id)
    assert (await report(engine, budget_id, t=4)).outcome == "hard_breach"
    assert await engine.reservations.commit(budget_id, "r", {"t": 7}) == OK
    assert await usage(engine, budget_id) == {"t": 7}


async def test_what_an_execution_committed_is_on_its_account(driver: Driver) -> None:
    engine = driver.engine
    budget_id = await new_budget(engine, {"t": 10})
    own = await driver.submit()
    held = NewReservation(reservation_id="r", dimensions={"t": 7}, ttl_ms=TTL_MS, execution_id=own)
    await engine.reservations.reserve(budget_id, held)
    await engine.reservations.commit(budget_id, "r", {"t": 5})
    await report(engine, budget_id, t=1)
    await engine.budgets.release_budget(budget_id, own)
    assert await usage(engine, budget_id) == {"t": 1}


async def test_concurrent_reservations_never_pass_a_hard_limit(engine: Engine) -> None:
    budget_id = await new_budget(engine, {"t": 100})
    other = engine_on(engine.deps.store.backend)

    async def reserve_and_commit(each: Engine, name: str) -> int:
        if not isinstance(await each.reservations.reserve(*asked(budget_id, name, t=7)), Reserved):
            return 0
        status = await each.budgets.get_budget_status(budget_id)
        assert status.usage.get("t", 0) + status.reserved.get("t", 0) <= 100
        await each.reservations.commit(budget_id, name, {"t": 6})
        return 6

    spent = await asyncio.gather(
        *(
            reserve_and_commit(each, f"{n}-{e}")
            for n in range(20)
            for e, each in enumerate((engine, other))
        )
    )
    assert await usage(engine, budget_id) == {"t": sum(spent)}
    assert sum(spent) <= 100
    assert await reserved(engine, budget_id) == {}
    await other.close()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dimensions": {"t": -1}}, "dimension t"),
        ({"dimensions": {"t": 2**53}}, "dimension t"),
        ({"dimensions": {"gpu": 1}}, "dimension gpu: not one of budget"),
        ({"dimensions": [("t", 1)]}, "expected a mapping"),
        ({"ttl_ms": 0}, "ttl_ms"),
        ({"ttl_ms": True}, "ttl_ms"),
        ({"reservation_id": ""}, "reservation_id: empty"),
        ({"execution_id": "x"}, "execution_id"),
        ({"budget_id": "x"}, "budget_id"),
    ],
)
async def test_a_bad_reservation_is_refused(
    engine: Engine, fields: dict[str, Any], words: str
) -> None:
    budget_id = await new_budget(engine, {"t": 10})
    stock: dict[str, Any] = {
        "budget_id": budget_id,
        "reservation_id": "r",
        "dimensions": {"t": 1},
        "ttl_ms": TTL_MS,
    }
    with refused(InvalidInput) as caught:
        given = stock | fields
        await engine.reservations.reserve(given.pop("budget_id"), NewReservation(**given))
    assert words in caught.value.detail
    assert await reserved(engine, budget_id) == {}


async def test_a_reservation_of_an_unknown_budget_is_not_found(engine: Engine) -> None:
    calls = [
        engine.reservations.reserve(*asked(SOME_BUDGET, t=1)),
        engine.reservations.commit(SOME_BUDGET, "r", {"t": 1}),
        engine.reservations.cancel(SOME_BUDGET, "r"),
    ]
    for call in calls:
        with refused(BudgetNotFound, SOME_BUDGET):
            await call
