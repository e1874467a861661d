"""Tags: written over what is there, read one by one, in the order of checks."""

import asyncio

import pytest

from flowfabric.errors import ExecutionNotFound, InvalidInput, InvalidTagKey
from flowfabric.operations.executions import Executions, TagsUpdated
from tests.conformance.driver import EVERYWHERE, NOWHERE, Driver, refused
from tests.proofs import proves


@proves(Executions.set_execution_tags)
async def test_tags_are_added_and_overwritten(driver: Driver) -> None:
    execution_id = await driver.submit(tags={"plain": "kept", "app.a": "old"})
    tags = driver.engine.operators
    assert await tags.set_execution_tags(
        execution_id, {"app.a": "new", "app.b": ""}
    ) == TagsUpdated(2)
    assert await tags.set_execution_tag(execution_id, "app.sub.c", "ü\n") == TagsUpdated(1)
    assert (await driver.record(execution_id)).tags == {
        "plain": "kept",
        "app.a": "new",
        "app.b": "",
        "app.sub.c": "ü\n",
    }


@pytest.mark.parametrize("situation", EVERYWHERE)
async def test_tags_change_nothing_else_in_any_state(driver: Driver, situation: str) -> None:
    held = await driver.reach(situation)
    before = await driver.record(held.execution_id)
    events = await driver.events()
    assert await driver.engine.operators.set_execution_tag(
        held.execution_id, "app.a", "1"
    ) == TagsUpdated(1)
    after = await driver.record(held.execution_id)
    assert (after.state, after.reason, after.next) == (before.state, before.reason, before.next)
    assert after.moved_at == before.moved_at
    assert after.version == before.version + 1
    assert after.tags == {**before.tags, "app.a": "1"}
    assert await driver.events() == events


async def test_reading_a_tag(driver: Driver) -> None:
    execution_id = await driver.submit(tags={"app.a": "1", "app.empty": ""})
    tags = driver.engine.operators
    assert await tags.get_execution_tag(execution_id, "app.a") == "1"
    assert await tags.get_execution_tag(execution_id, "app.empty") == ""
    assert await tags.get_execution_tag(execution_id, "app.missing") is None
    assert await tags.get_execution_tag(NOWHERE, "app.a") is None
    with refused(InvalidTagKey, "plain"):
        await tags.get_execution_tag(execution_id, "plain")


async def test_checks_come_in_order(driver: Driver) -> None:
    execution_id = await driver.submit()
    tags = driver.engine.operators
    with refused(InvalidInput):
        await tags.set_execution_tags(NOWHERE, {})
    with refused(ExecutionNotFound):
        await tags.set_execution_tags(NOWHERE, {"nodot": "1"})
    with refused(InvalidTagKey, "nodot"):
        await tags.set_execution_tags(execution_id, {"app.fine": "1", "nodot": "2"})
    assert (await driver.record(execution_id)).tags == {}


async def test_writers_at_the_same_time_all_get_through(driver: Driver) -> None:
    execution_id = await driver.submit()
    tags = driver.engine.operators
    await asyncio.gather(
        *(tags.set_execution_tag(execution_id, f"app.t{n}", str(n)) for n in range(20))
    )
    assert (await driver.record(execution_id)).tags == {f"app.t{n}": str(n) for n in range(20)}


async def test_a_tag_survives_claim_and_end(driver: Driver) -> None:
    claimed = await driver.started(tags={"app.team": "blue"})
    await driver.engine.operators.set_execution_tag(claimed.execution_id, "app.case", "7")
    await driver.engine.outcomes.complete(claimed.proof)
    assert (await driver.record(claimed.execution_id)).tags == {
        "app.team": "blue",
        "app.case": "7",
    }
