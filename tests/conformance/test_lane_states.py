"""Lane states: who may submit, who may claim, and that changing them touches no execution."""

import pytest

from flowfabric.backend.types import ClaimRequest
from flowfabric.engine import Engine, engine_on
from flowfabric.errors import InvalidInput, LaneNotAccepting
from flowfabric.operations.executions import Submission
from flowfabric.operations.lanes import Lanes
from flowfabric.operations.workers import ClaimOrder
from tests.conformance.driver import Driver, refused
from tests.conformance.limiting import Watched
from tests.proofs import proves

ORDER = ClaimOrder(worker_id="w", worker_instance_id="w-1", lanes=("default",))
# state: (takes new work, gives work out)
STATES = {
    "active": (True, True),
    "paused": (True, False),
    "draining": (False, True),
    "disabled": (False, False),
}


@proves(Lanes.set_lane)
@pytest.mark.parametrize("state", STATES)
async def test_a_state_says_who_may_submit_and_who_may_claim(driver: Driver, state: str) -> None:
    takes, gives = STATES[state]
    engine = driver.engine
    own = await driver.submit()
    await engine.lanes.configure("default", "default", state=state)
    before = await driver.record(own)
    if takes:
        await driver.submit(priority=0)
    else:
        with refused(LaneNotAccepting, f"lane default is {state}"):
            await driver.submit()
    claimed = await driver.claim_all(n=9)
    assert bool(claimed) is gives
    assert bool(await engine.grants.claim_for_worker(ORDER)) is False
    if not gives:
        assert await driver.record(own) == before
        assert (await engine.reads.describe_execution(own)).public_state == "waiting"


@pytest.mark.parametrize("state", ["paused", "disabled"])
async def test_waiting_work_shows_its_lanes_state_and_nothing_is_written(
    driver: Driver, state: str
) -> None:
    engine = driver.engine
    own = await driver.submit()
    before = await driver.record(own)
    await engine.lanes.configure("default", "default", state=state)
    info = await engine.reads.describe_execution(own)
    assert info.state_vector.eligibility_state == "blocked_by_lane_state"
    assert info.state_vector.blocking_reason == "paused_by_policy"
    assert (info.public_state, info.blocking_detail) == ("waiting", f"lane default is {state}")
    await engine.lanes.configure("default", "default", state="active")
    assert await driver.record(own) == before
    assert (await driver.claim()).execution_id == own


async def test_a_lane_of_the_same_name_elsewhere_is_untouched(driver: Driver) -> None:
    await driver.engine.lanes.configure("default", "default", state="disabled")
    own = await driver.submit(namespace="other")
    assert (await driver.claim(namespace="other")).execution_id == own


async def test_of_several_lanes_only_the_open_ones_give(driver: Driver) -> None:
    shut, open_one = await driver.submit(lane="shut"), await driver.submit(lane="open")
    await driver.engine.lanes.configure("default", "shut", state="paused")
    claimed = await driver.claim_all(n=9, lanes=("shut", "open"))
    assert [one.execution_id for one in claimed] == [open_one]
    assert (await driver.record(shut)).state == "waiting"


async def test_a_paused_lane_costs_a_claim_no_look(driver: Driver) -> None:
    watched = Watched(driver.engine.deps.store.backend)
    engine: Engine = engine_on(watched)
    await driver.submit()
    await engine.lanes.configure("default", "default", state="paused")
    watched.calls.clear()
    assert await engine.claims.claim(ORDER) == []
    assert "claim" not in watched.calls
    await engine.close()


async def test_another_engine_hears_of_a_pause(driver: Driver) -> None:
    other = engine_on(driver.engine.deps.store.backend)
    await driver.submit()
    assert (await other.lanes.look_up("default", "default")).state == "active"
    await driver.engine.lanes.configure("default", "default", state="paused")
    assert await other.claims.claim(ORDER) == []
    with refused(LaneNotAccepting):
        await driver.engine.lanes.configure("default", "default", state="disabled")
        await other.executions.create(Submission(kind="work"))
    await other.close()


@pytest.mark.parametrize("fields", [{"state": "asleep"}, {"shards": 0}, {"shards": 257}])
async def test_a_bad_state_is_refused(engine: Engine, fields: dict[str, object]) -> None:
    with refused(InvalidInput):
        await engine.lanes.configure("default", "default", **fields)  # type: ignore[arg-type]


async def test_a_claim_that_names_no_open_lane_asks_for_none(driver: Driver) -> None:
    await driver.engine.lanes.configure("default", "default", state="paused")
    request = await driver.engine.claims.request(ORDER)
    assert isinstance(request, ClaimRequest)
    assert request.lanes == ()
