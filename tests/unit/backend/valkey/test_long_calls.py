"""A call that takes long leaves what is left to another one: here every call takes too long."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from flowfabric.backend.valkey import library
from flowfabric.backend.valkey.calls import Calls
from flowfabric.engine.attempts.finishing import Finish
from flowfabric.engine.attempts.outcomes import Done
from flowfabric.errors import TransportFault
from flowfabric.operations.workers import ClaimOrder, Complete
from tests.conformance.driver import Driver
from tests.conformance.graphs import Graph, chain, quorum

MANY = 5
ORDER = ClaimOrder(worker_id="w", worker_instance_id="w-1", lanes=("default",), n=MANY)


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """By name, the functions that were called."""
    monkeypatch.setattr(library, "CPU_LIMITS", dict.fromkeys(library.CPU_LIMITS, (0.0, 1)))
    counted: Counter[str] = Counter()
    run = Calls.run

    async def counting(self: Calls, function: str, *args: Any, **options: Any) -> Any:
        counted[function] += 1
        return await run(self, function, *args, **options)

    monkeypatch.setattr(Calls, "run", counting)
    return counted


async def submitted(driver: Driver, n: int = MANY) -> list[str]:
    return list(await asyncio.gather(*(driver.submit(priority=n - i) for i in range(n))))


async def test_every_new_execution_is_answered(driver: Driver, asked: Counter[str]) -> None:
    own = await submitted(driver)
    assert len(set(own)) == MANY
    assert asked["create"] == MANY
    assert [(await driver.record(one)).state for one in own] == ["waiting"] * MANY


async def test_submissions_of_one_key_are_one_execution(driver: Driver) -> None:
    own = await asyncio.gather(*(driver.submit(idempotency_key="k") for _ in range(MANY)))
    assert len(set(own)) == 1


async def test_as_many_are_claimed_as_were_asked_for(driver: Driver, asked: Counter[str]) -> None:
    own = await submitted(driver)
    claimed = await driver.engine.claims.claim(ORDER)
    assert [one.execution_id for one in claimed] == own
    assert asked["claim"] == MANY
    assert await driver.engine.claims.claim(ORDER) == []


async def test_every_finish_is_answered_and_the_claim_behind_them(
    driver: Driver, asked: Counter[str]
) -> None:
    own = await submitted(driver)
    held = await driver.engine.claims.claim(ORDER)
    (then,) = await submitted(driver, 1)
    answer = await driver.engine.finishing.finish_and_claim(
        [Finish(one.proof, Complete(one.execution_id.encode())) for one in held], ORDER
    )
    assert [one.execution_id for one in answer.claimed] == [then]
    assert asked["apply"] == MANY
    assert [await driver.result(one) for one in own] == [one.encode() for one in own]


async def test_each_call_claims_what_it_released(driver: Driver, asked: Counter[str]) -> None:
    flows = [await driver.graph(chain("a", "b")) for _ in range(MANY)]
    held = [(await flow.take("a")).proof for flow in flows]
    asked.clear()
    answer = await driver.engine.finishing.finish_and_claim(
        [Finish(one, Complete()) for one in held], ORDER
    )
    assert {one.execution_id for one in answer.claimed} == {flow.ids["b"] for flow in flows}
    assert asked["apply"] == MANY
    assert asked["claim"] == 0


async def test_what_was_leased_is_not_lost_with_a_later_call(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await submitted(driver)
    held = await driver.engine.claims.claim(ORDER)
    (then,) = await submitted(driver, 1)
    run, calls = Calls.run, Counter[str]()

    async def failing(self: Calls, function: str, *args: Any, **options: Any) -> Any:
        calls[function] += 1
        if function == "apply" and calls[function] > 2:
            raise TransportFault("valkey: gone")
        return await run(self, function, *args, **options)

    monkeypatch.setattr(Calls, "run", failing)
    answer = await driver.engine.finishing.finish_and_claim(
        [Finish(one.proof, Complete()) for one in held], ORDER
    )
    assert [one.execution_id for one in answer.claimed] == [then]
    kinds = [type(one) for one in answer.done]
    assert kinds == [Done, Done, *[TransportFault] * (MANY - 2)]


async def test_changes_of_one_execution_stay_in_their_order(driver: Driver) -> None:
    await submitted(driver, 1)
    (one,) = await driver.engine.claims.claim(ORDER)
    leases, outcomes = driver.engine.leases, driver.engine.outcomes
    await asyncio.gather(leases.progress(one.proof, 50, "half"), outcomes.complete(one.proof))
    record = await driver.record(one.execution_id)
    assert (record.state, record.progress_pct) == ("completed", 50)


async def test_calls_of_one_claim_share_the_room_for_inputs(driver: Driver) -> None:
    for _ in range(MANY):
        await driver.submit(input=bytes(1024 * 1024))
    claimed = await driver.engine.claims.claim(ORDER)
    assert [one.input_deferred for one in claimed] == [False] * 4 + [True]


# ---- walks through a flow, a step for each member


def fan() -> Graph:
    return Graph(arrows=[("top", f"m{i}") for i in range(MANY)])


async def test_everybody_behind_a_member_is_released(driver: Driver, asked: Counter[str]) -> None:
    flow = await driver.graph(fan())
    await flow.complete("top")
    await flow.settled()
    stored = await flow.flow()
    assert stored.counts == {"completed": 1, "waiting": MANY}
    assert (stored.unsettled, stored.due_at) == ((), 0)
    assert asked["settle"] == MANY - 1


async def test_everybody_behind_a_failure_is_skipped(driver: Driver, asked: Counter[str]) -> None:
    ends = [(f"m{i}", "end") for i in range(MANY)]
    flow = await driver.graph(Graph(arrows=[*fan().arrows, *ends]))
    await flow.fail("top")
    await flow.settled()
    stored = await flow.flow()
    assert stored.counts == {"failed": 1, "skipped": MANY + 1}
    assert (stored.unsettled, stored.due_at) == ((), 0)
    assert asked["settle"] >= MANY


async def test_every_loser_of_a_race_is_cut(driver: Driver, asked: Counter[str]) -> None:
    arrows = [(f"m{i}", "end") for i in range(MANY)]
    groups = {"end": quorum(1, "cancel_remaining")}
    flow = await driver.graph(Graph(arrows=arrows, groups=groups))
    await flow.complete("m2")
    await flow.settled()
    stored = await flow.flow()
    assert stored.counts == {"completed": 1, "cancelled": MANY - 1, "waiting": 1}
    assert asked["settle"] >= MANY - 1


async def test_every_member_of_a_cancelled_flow_ends(driver: Driver, asked: Counter[str]) -> None:
    flow = await driver.graph(fan())
    await driver.engine.flow_operators.cancel_flow(flow.flow_id, wait=True)
    assert (await flow.flow()).counts == {"cancelled": MANY + 1}
    assert asked["settle"] == MANY


async def test_graphs_that_share_a_call_are_all_stored(driver: Driver, asked: Counter[str]) -> None:
    flows = await asyncio.gather(*(driver.graph(chain("a", "b")) for _ in range(MANY)))
    assert asked["graph"] == MANY
    for flow in flows:
        assert (await flow.flow()).counts == {"waiting": 1, "waiting_children": 1}
