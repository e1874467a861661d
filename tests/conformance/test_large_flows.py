"""Large flows: wide, deep and contested ones end as they should, in steps that stay small."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from flowfabric.backend.base import Backend
from flowfabric.core.graph import Flow, flow_state
from flowfabric.core.settle import EDGES_PER_STEP
from flowfabric.operations.flows import (
    GraphEdge,
    GraphGroup,
    GraphNode,
    GraphSubmission,
    MembersCancelled,
    SubmittedGraph,
)
from tests.conformance.driver import PERMANENT, Driver
from tests.stores import CONFORMANCE, ROTATING

BOUND = EDGES_PER_STEP
# Many steps on every store; the most that a flow may have is enough to try on some of them a day.
WIDTHS = [
    *(pytest.param(*store.values, 2_498, marks=store.marks) for store in CONFORMANCE),
    *(pytest.param(*store.values, 9_998, marks=store.marks) for store in ROTATING),
]

pytestmark = pytest.mark.timeout(300)


def submission(edges: Sequence[tuple[str, str]], **fields: Any) -> GraphSubmission:
    names = dict.fromkeys(name for edge in edges for name in edge)
    return GraphSubmission(
        nodes=tuple(GraphNode(kind="work", name=name) for name in names),
        edges=tuple(GraphEdge(source=source, target=target) for source, target in edges),
        **fields,
    )


def fan(width: int) -> GraphSubmission:
    """One that feeds many that feed one."""
    middle = [f"m{i:04}" for i in range(width)]
    return submission([*(("top", name) for name in middle), *((name, "end") for name in middle)])


class Watch:
    """Looks at the flow after every step that goes on with it."""

    def __init__(self, backend: Backend, flow_id: str) -> None:
        self.steps = 0
        self.longest_list = 0
        self._flow_id = flow_id
        self._backend = backend
        self._settle = backend.settle
        backend.settle = self.settle  # type: ignore[method-assign]

    async def flow(self) -> Flow:
        (flow,) = await self._backend.flows([self._flow_id])
        assert flow is not None
        return flow

    async def settle(self, flow_ids: Sequence[str]) -> Any:
        before = await self.flow()
        answers = await self._settle(flow_ids)
        after = await self.flow()
        assert moved(before, after) <= BOUND
        self.steps += 1
        self.longest_list = max(self.longest_list, len(after.unsettled))
        return answers


def moved(before: Flow, after: Flow) -> int:
    """How many members changed their public state."""
    names = before.counts.keys() | after.counts.keys()
    return sum(max(0, after.counts.get(n, 0) - before.counts.get(n, 0)) for n in names)


async def submit(driver: Driver, asked: GraphSubmission) -> SubmittedGraph:
    submitted = await driver.engine.graphs.submit_graph(asked)
    assert submitted.is_new
    return submitted


async def run_all(driver: Driver) -> int:
    """Claim and complete whatever is offered until nothing is; how many that were."""
    done = 0
    while claimed := await driver.claim_all(n=100):
        complete = driver.engine.outcomes.complete
        await asyncio.gather(*(complete(one.proof, b"r") for one in claimed))
        done += len(claimed)
    return done


@pytest.mark.parametrize(("backend", "width"), WIDTHS, indirect=["backend"])
async def test_thousands_of_members_fan_out_and_in(
    driver: Driver, backend: Backend, width: int
) -> None:
    submitted = await submit(driver, fan(width))
    watch = Watch(backend, submitted.flow_id)
    top = await driver.take(submitted.executions["top"])
    await driver.engine.outcomes.complete(top.proof)
    await driver.engine.settling.drain()
    assert (await watch.flow()).counts == {"completed": 1, "waiting": width, "waiting_children": 1}
    assert watch.steps >= width // BOUND
    assert watch.longest_list == 1
    assert await run_all(driver) == width + 1
    flow = await watch.flow()
    assert (flow.counts, flow_state(flow)) == ({"completed": width + 2}, "completed")
    assert (flow.unsettled, flow.due_at, flow.finished_at) == ((), 0, driver.clock())


@pytest.mark.parametrize(("backend", "width"), WIDTHS, indirect=["backend"])
async def test_cancelling_thousands_of_members_ends_every_one(
    driver: Driver, backend: Backend, width: int
) -> None:
    submitted = await submit(driver, fan(width))
    watch = Watch(backend, submitted.flow_id)
    answer = await driver.engine.flow_operators.cancel_flow(submitted.flow_id, wait=True)
    assert isinstance(answer, MembersCancelled)
    assert watch.steps >= (width + 2) // BOUND - 1
    flow = await watch.flow()
    assert (flow.counts, flow.due_at) == ({"cancelled": width + 2}, 0)
    assert flow.finished_at


async def test_a_failure_skips_thousands(driver: Driver, backend: Backend) -> None:
    width = 2_000
    submitted = await submit(driver, fan(width))
    watch = Watch(backend, submitted.flow_id)
    top = await driver.take(submitted.executions["top"])
    await driver.engine.outcomes.fail(top.proof, PERMANENT)
    await driver.engine.settling.drain()
    flow = await watch.flow()
    assert flow.counts == {"failed": 1, "skipped": width + 1}
    assert (flow.unsettled, flow.due_at, flow_state(flow)) == ((), 0, "failed")
    assert watch.longest_list <= 2 * BOUND


async def test_a_skip_runs_down_a_chain_of_two_thousand(driver: Driver, backend: Backend) -> None:
    names = [f"n{i:04}" for i in range(2_000)]
    submitted = await submit(driver, submission(list(pairwise(names))))
    watch = Watch(backend, submitted.flow_id)
    first = await driver.take(submitted.executions[names[0]])
    await driver.engine.outcomes.fail(first.proof, PERMANENT)
    await driver.engine.settling.drain()
    flow = await watch.flow()
    assert flow.counts == {"failed": 1, "skipped": 1_999}
    assert (flow.unsettled, flow.due_at) == ((), 0)
    assert watch.longest_list == 1
    completions = await driver.completions()
    assert len(completions) == len(set(completions)) == 2_000


@pytest.mark.parametrize("dies", [False, True])
async def test_a_race_of_a_thousand_cuts_every_loser_once(
    driver: Driver, backend: Backend, dies: bool
) -> None:
    names = [f"s{i:04}" for i in range(1_001)]
    policy = {"kind": "quorum", "k": 1, "on_satisfied": "cancel_remaining"}
    asked = submission([(name, "end") for name in names], groups=(GraphGroup("end", policy),))
    submitted = await submit(driver, asked)
    watch = Watch(backend, submitted.flow_id)
    winner = await driver.take(submitted.executions["s0500"])
    if dies:
        driver.engine.deps.on_more = lambda *_: None
    await driver.engine.outcomes.complete(winner.proof)
    if dies:
        assert (await watch.flow()).due_at == driver.clock()
        await driver.sweep()
    await driver.engine.settling.drain()
    flow = await watch.flow()
    assert flow.counts == {"completed": 1, "cancelled": 1_000, "waiting": 1}
    assert (flow.unsettled, flow.due_at) == ((), 0)
    assert watch.longest_list <= 2 * BOUND
    completions = await driver.completions()
    assert len(completions) == len(set(completions)) == 1_001
