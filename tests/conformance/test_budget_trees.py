"""Trees of budgets: what is spent at a leaf counts all the way up, and is refused anywhere."""

import asyncio

from flowfabric.engine import Engine
from flowfabric.errors import BudgetNotFound, InvalidInput, PartitionMismatch
from flowfabric.operations.budgets import HardBreach, NewBudget, NewReservation, SoftBreach
from tests.conformance.driver import Driver, refused, stranger
from tests.conformance.limiting import SOME_BUDGET, new_budget, report, usage, why


async def test_a_child_lives_where_its_parent_lives(engine: Engine) -> None:
    of_budget = engine.deps.counts.of_budget
    root = await new_budget(engine, {"t": 9})
    child = await new_budget(engine, {"t": 5}, parent_id=root)
    assert of_budget(child) == of_budget(root)
    elsewhere = next(one for one in iter(stranger, "") if of_budget(one) != of_budget(root))
    with refused(PartitionMismatch):
        await new_budget(engine, {"t": 5}, parent_id=root, budget_id=elsewhere)
    beside = next(one for one in iter(stranger, "") if of_budget(one) == of_budget(root))
    assert await new_budget(engine, {"t": 5}, parent_id=root, budget_id=beside) == beside
    assert (await engine.budgets.get_budget_status(beside)).parent_id == root


async def test_a_parent_must_exist(engine: Engine) -> None:
    with refused(BudgetNotFound, SOME_BUDGET):
        await new_budget(engine, {"t": 5}, parent_id=SOME_BUDGET)


async def test_a_tree_has_a_deepest_level(engine: Engine) -> None:
    leaf = await new_budget(engine, {"t": 9})
    for _ in range(7):
        leaf = await new_budget(engine, {"t": 9}, parent_id=leaf)
    (chain,) = await engine.deps.store.backend.budgets([leaf])
    assert len(chain) == 8
    with refused(InvalidInput):
        await new_budget(engine, {"t": 9}, parent_id=leaf)


async def test_an_existing_child_needs_no_parent_to_be_found_again(engine: Engine) -> None:
    root = await new_budget(engine, {"t": 9})
    child = await new_budget(engine, {"t": 5}, parent_id=root)
    again = await engine.budgets.create_budget(
        NewBudget(dimensions=(), hard_limits=(), soft_limits=(), budget_id=child)
    )
    assert not again.is_new


async def test_spending_counts_at_every_level_limited_or_not(engine: Engine) -> None:
    root = await new_budget(engine, {"t": 100})
    middle = await new_budget(engine, {"t": 50}, parent_id=root)
    leaf = await new_budget(engine, {"t": 10, "c": 0}, parent_id=middle)
    await report(engine, leaf, t=4, c=7)
    await report(engine, middle, t=1)
    assert [await usage(engine, one) for one in (leaf, middle, root)] == [
        {"t": 4, "c": 7},
        {"t": 5, "c": 7},
        {"t": 5, "c": 7},
    ]


async def test_the_first_level_that_refuses_is_named_and_nothing_is_counted(
    engine: Engine,
) -> None:
    root = await new_budget(engine, {"t": 10})
    one = await new_budget(engine, {"t": 8}, parent_id=root)
    other = await new_budget(engine, {"t": 8}, parent_id=root)
    own = await report(engine, one, t=9)
    assert isinstance(own, HardBreach)
    assert own.budget_id == one
    await report(engine, one, t=6)
    breach = await report(engine, other, t=5)
    assert isinstance(breach, HardBreach)
    assert breach.budget_id == root
    assert (breach.current_usage, breach.hard_limit) == (6, 10)
    assert await usage(engine, other) == {}
    counts = [
        (await engine.budgets.get_budget_status(each)).breach_count for each in (one, other, root)
    ]
    assert counts == [1, 0, 1]


async def test_siblings_together_never_pass_their_parent(engine: Engine) -> None:
    root = await new_budget(engine, {"t": 50})
    leaves = [await new_budget(engine, {"t": 30}, parent_id=root) for _ in range(3)]
    answers = await asyncio.gather(
        *(report(engine, leaf, t=1) for leaf in leaves for _ in range(40))
    )
    assert sum(answer.outcome == "ok" for answer in answers) == 50
    assert await usage(engine, root) == {"t": 50}
    assert sum([(await usage(engine, leaf)).get("t", 0) for leaf in leaves]) == 50


async def test_each_level_warns_for_itself_and_the_leaf_is_answered(driver: Driver) -> None:
    engine = driver.engine
    root = await new_budget(engine, {}, {"t": 1})
    leaf = await new_budget(engine, {}, {"t": 2}, parent_id=root)
    answer = await report(engine, leaf, t=3)
    assert isinstance(answer, SoftBreach)
    assert (answer.budget_id, answer.soft_limit) == (leaf, 2)
    told = [entry.details["budget_id"] for entry in await driver.events("operator")]
    assert told == [leaf, root]


async def test_levels_reset_by_themselves_and_release_respects_each(driver: Driver) -> None:
    engine = driver.engine
    root = await new_budget(engine, {"t": 0}, reset_interval_ms=10_000)
    leaf = await new_budget(engine, {"t": 0}, parent_id=root)
    own = await driver.submit()
    await engine.budgets.record_spend(leaf, own, {"t": 5})
    await driver.pass_time(10_000)
    assert [await usage(engine, one) for one in (leaf, root)] == [{"t": 5}, {"t": 0}]
    await engine.budgets.record_spend(leaf, own, {"t": 2})
    await engine.budgets.release_budget(leaf, own)
    assert [await usage(engine, one) for one in (leaf, root)] == [{"t": 0}, {"t": 0}]


async def test_a_hold_counts_at_every_level_until_it_ends(driver: Driver) -> None:
    engine = driver.engine
    root = await new_budget(engine, {"t": 10})
    one = await new_budget(engine, {"t": 8}, parent_id=root)
    other = await new_budget(engine, {"t": 8}, parent_id=root)
    held = NewReservation(reservation_id="r", dimensions={"t": 8}, ttl_ms=1_000)
    await engine.reservations.reserve(one, held)
    above = await report(engine, other, t=3)
    assert isinstance(above, HardBreach)
    assert above.budget_id == root
    driver.clock.advance(1_000)
    assert (await report(engine, other, t=3)).outcome == "ok"
    status = await engine.budgets.get_budget_status(root)
    assert (status.usage, status.reserved) == ({"t": 3}, {})


async def test_a_closed_ancestor_keeps_work_of_the_leaf_from_starting(driver: Driver) -> None:
    engine = driver.engine
    root = await new_budget(engine, {"t": 5})
    leaf = await new_budget(engine, {"t": 50}, parent_id=root)
    await report(engine, leaf, t=5)
    own = await driver.submit(policy={"budget_ids": [leaf]})
    assert await driver.claim_all() == []
    assert await why(driver, own) == ("blocked", "budget", f"budget {root}: t 5/5")
    await engine.budgets.reset_budget(leaf)
    assert (await driver.record(own)).state == "blocked"
    await engine.budgets.reset_budget(root)
    assert (await driver.claim()).execution_id == own


async def test_a_release_at_the_leaf_wakes_those_that_wait_for_its_ancestor(
    driver: Driver,
) -> None:
    engine = driver.engine
    root = await new_budget(engine, {"t": 5})
    leaf = await new_budget(engine, {"t": 0}, parent_id=root)
    spender = await driver.submit(lane="elsewhere")
    await engine.budgets.record_spend(leaf, spender, {"t": 5})
    own = await driver.submit(policy={"budget_ids": [leaf]})
    assert await driver.claim_all() == []
    await engine.budgets.release_budget(leaf, spender)
    assert (await driver.record(own)).state == "waiting"
