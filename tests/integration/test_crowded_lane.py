"""A hundred thousand executions that wait for somebody else must not slow anybody down."""

import time
from pathlib import Path
from statistics import median
from typing import Final

import pytest

from flowfabric.engine import Engine, engine_on
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import ClaimOrder
from tests.conformance.limiting import Watched, flood
from tests.rotation import on_stores
from tests.stores import STORES

CROWD: Final = 100_000
CROWDED: Final = "default"
LANES: Final = (CROWDED, "empty")
# A look that meets noise is one of several; a queue that is read too far slows every one.
_LOOKS: Final = 5
_CLAIMS: Final = 25
_GPU: Final = {"routing_requirements": {"required_capabilities": ["gpu"]}}


async def _claim(engine: Engine, lane: str) -> float:
    """How long the claim of a rare execution takes that was just submitted."""
    submitted = await engine.executions.create(Submission(kind="work", policy=_GPU, lane=lane))
    order = ClaimOrder(
        worker_id="w", worker_instance_id="w-1", lanes=(lane,), capabilities=("gpu",)
    )
    start = time.perf_counter()
    (claimed,) = await engine.claims.claim(order)
    took = time.perf_counter() - start
    assert claimed.execution_id == submitted.execution_id
    await engine.outcomes.complete(claimed.proof)
    return took


async def _slowdown(engine: Engine) -> float:
    """The crowded lane's median claim against the empty one's, taken in turns."""
    times: dict[str, list[float]] = {lane: [] for lane in LANES}
    for _ in range(_CLAIMS):
        for lane in LANES:
            times[lane].append(await _claim(engine, lane))
    return median(times[CROWDED]) / median(times["empty"])


@pytest.mark.parametrize(
    "store", on_stores(["sqlite"], ["memory", "postgres", "valkey", "valkey-cluster"])
)
@pytest.mark.timeout(300)
async def test_a_rare_execution_is_claimed_as_fast_as_in_an_empty_lane(
    store: str, tmp_path: Path
) -> None:
    watched = Watched(STORES[store](None, tmp_path))
    await watched.prepare()
    engine = engine_on(watched)
    await flood(engine, CROWD)
    watched.calls.clear()
    assert min([await _slowdown(engine) for _ in range(_LOOKS)]) < 1.25
    assert watched.calls.count("claim") == _LOOKS * _CLAIMS * len(LANES)
    await engine.close()
    await watched.close()
