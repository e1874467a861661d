"""A process that dies between any two calls to the store: no slot leaks, the work runs later."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from flowfabric.backend.base import Backend
from flowfabric.core.limits.gates import key_gate, quota_gate
from flowfabric.engine import Engine, engine_on
from flowfabric.engine.attempts.finishing import Finish
from flowfabric.errors import FlowFabricError, TransportFault
from flowfabric.operations.budgets import NewReservation
from flowfabric.operations.workers import ClaimOrder, Complete, GrantClaim
from tests.conformance.driver import LEASE_MS, Driver
from tests.conformance.limiting import new_budget, new_quota, slots

ORDER: Final = ClaimOrder(worker_id="w", worker_instance_id="w-1", lanes=("default",), n=2)
_READS: Final = frozenset({"config_get", "read", "workers", "flows", "budgets", "gates"})


class Dying:
    """A store as a process sees it that dies at its n-th changing call: before the call gets there,
    or before its answer comes back. No later call gets anywhere."""

    def __init__(self, inner: Backend, calls: int, *, is_done: bool) -> None:
        self._inner = inner
        self._left = calls
        self._is_done = is_done
        self.is_dead = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in ("notifier", "describe", "close", "now"):
            return found

        async def call(*given: Any, **named: Any) -> Any:
            if self.is_dead:
                raise TransportFault("dead")
            if name in _READS:
                return await found(*given, **named)
            self._left -= 1
            if self._left >= 0:
                return await found(*given, **named)
            self.is_dead = True
            if self._is_done:
                await found(*given, **named)
            raise TransportFault("dead")

        return call


async def _claim_and_complete(engine: Engine) -> None:
    for claimed in await engine.claims.claim(ORDER):
        await engine.leases.renew(claimed.proof, LEASE_MS)
        await engine.outcomes.complete(claimed.proof)


async def _pause(engine: Engine) -> None:
    for claimed in await engine.claims.claim(ORDER):
        await engine.outcomes.delay(claimed.proof, for_ms=1_000)


async def _finish_and_claim(engine: Engine) -> None:
    for claimed in await engine.claims.claim(ORDER):
        finish = Finish(claimed.proof, Complete(b"done"))
        await engine.finishing.finish_and_claim([finish], ORDER)


async def _grant(engine: Engine) -> None:
    order = ClaimOrder(worker_id="w", worker_instance_id="w-1", lanes=("default",), lease_ms=5_000)
    grant = await engine.grants.claim_for_worker(order)
    if grant is None:
        return
    claim = GrantClaim(
        execution_id=grant.execution_id,
        grant_key=grant.grant_key,
        worker_id="w",
        worker_instance_id="w-1",
    )
    await engine.outcomes.complete((await engine.grants.claim_execution(claim)).proof)


SCRIPTS: Final[dict[str, Callable[[Engine], Awaitable[None]]]] = {
    "claim, renew, complete": _claim_and_complete,
    "claim, pause": _pause,
    "claim, finish and claim": _finish_and_claim,
    "grant, claim, complete": _grant,
}


async def _recover(driver: Driver, ids: list[str]) -> None:
    """Time passes, the duties run, and another worker does all that is left."""
    states: set[str] = set()
    for _ in range(12):
        await driver.pass_time(10_000)
        for claimed in await driver.claim_all(n=9):
            await driver.engine.outcomes.complete(claimed.proof)
        states = {(await driver.record(own)).state for own in ids}
        if states == {"completed"}:
            return
    raise AssertionError(f"work left over: {states}")


@pytest.mark.parametrize("is_done", [False, True], ids=["call lost", "answer lost"])
@pytest.mark.parametrize("script", sorted(SCRIPTS))
async def test_nothing_leaks_wherever_a_process_dies(
    driver: Driver, script: str, is_done: bool
) -> None:
    for calls in range(20):
        quota = await new_quota(driver.engine, rate=50, window=10, cap=1)
        budget = await new_budget(driver.engine, {"t": 5})
        key = f"key-{calls}"
        policy = {"quota_ids": [quota], "budget_ids": [budget], "concurrency_key": key}
        ids = [await driver.submit(policy=policy) for _ in range(2)]
        dying = Dying(driver.engine.deps.store.backend, calls, is_done=is_done)
        engine = engine_on(dying)
        try:
            await SCRIPTS[script](engine)
        except FlowFabricError:
            assert dying.is_dead
        await engine.close()
        await _recover(driver, ids)
        for gate in (quota_gate(quota), key_gate("default", key)):
            assert await slots(driver.engine, gate) == 0
        if not dying.is_dead:
            return
    raise AssertionError("the script never came to its end")


async def _set_aside_and_spend(engine: Engine, budget_id: str) -> None:
    asked = NewReservation(reservation_id="r", dimensions={"t": 4}, ttl_ms=LEASE_MS)
    await engine.reservations.reserve(budget_id, asked)
    await engine.reservations.commit(budget_id, "r", {"t": 3})


@pytest.mark.parametrize("repeats", [False, True], ids=["left", "repeated"])
@pytest.mark.parametrize("is_done", [False, True], ids=["call lost", "answer lost"])
async def test_an_amount_set_aside_is_spent_once_or_returns(
    driver: Driver, is_done: bool, repeats: bool
) -> None:
    for calls in range(3):
        budget = await new_budget(driver.engine, {"t": 5})
        dying = Dying(driver.engine.deps.store.backend, calls, is_done=is_done)
        engine = engine_on(dying)
        try:
            await _set_aside_and_spend(engine, budget)
        except FlowFabricError:
            assert dying.is_dead
        await engine.close()
        if repeats:
            await _set_aside_and_spend(driver.engine, budget)
        await driver.pass_time(LEASE_MS)
        status = await driver.engine.budgets.get_budget_status(budget)
        assert dying.is_dead == (calls < 2)
        is_spent = repeats or not dying.is_dead or (is_done and calls == 1)
        assert (status.usage.get("t", 0), status.reserved) == (3 if is_spent else 0, {})
