"""Work with limits beside the same work without: admission, spending, and explaining."""

import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import uuid4

from bench import valkey_limits
from bench.cycle import INPUT, RESULT, cycle_of, engine_at
from bench.measure import Cycle, Measure, measure
from bench.report import Options, Ratio, Report
from flowfabric.engine import Engine
from flowfabric.operations.budgets import NewBudget, NewQuota
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import ClaimOrder

CALLERS = 64
_PLENTY = 2**40
Make = Callable[[Engine], Awaitable[Cycle]]


async def run(options: Options) -> Report:
    cycles = options.cycles // 2
    measures: list[Measure] = []
    ratios: list[Ratio] = []
    for scheme in ("memory", "sqlite"):
        free = await _run(scheme, "no limits", _free, CALLERS, cycles)
        limited = await _run(scheme, "budget and quota", gated, CALLERS, cycles)
        measures += [free, limited]
        name = f"{scheme}, 64 callers: processor time with limits / without"
        ratios.append(Ratio.at_most(name, limited.cpu_us / free.cpu_us, 3.0))
    measures += [
        await _run("sqlite", "budget and quota", gated, 1, cycles // 10),
        await _run("sqlite", "spend, one budget", spending, CALLERS, cycles),
        await _run("sqlite", "spend, tree of three", _spending_in_a_tree, CALLERS, cycles),
    ]
    explained = await _run("sqlite", "explain", _explaining, 1, cycles // 5)
    measures.append(explained)
    ratios.append(Ratio.at_most("sqlite: explain, median ms", explained.median_ms, 20.0))
    return Report(measures, ratios)


async def run_on_valkey(options: Options) -> Report:
    kinds: dict[str, Make] = {
        "no limits": _free,
        "budget and quota": gated,
        "spend, one budget": spending,
        "spend, tree of three": _spending_in_a_tree,
    }
    return await valkey_limits.report(options, kinds, _wide)


async def _run(scheme: str, what: str, make: Make, callers: int, cycles: int) -> Measure:
    with tempfile.TemporaryDirectory() as directory:
        async with engine_at(scheme, Path(directory)) as engine:
            cycle = await make(engine)
            await measure("warm-up", cycle, callers, max(callers, cycles // 10))
            return await measure(f"{scheme}: {what}", cycle, callers, cycles)


async def _free(engine: Engine) -> Cycle:
    return cycle_of(engine)


async def gated(engine: Engine) -> Cycle:
    """The same cycle with a budget, a quota and a concurrency key, all of them wide."""
    submission = Submission(kind="bench", input=INPUT, creator="bench", policy=await _wide(engine))
    order = ClaimOrder(worker_id="bench", worker_instance_id="bench-1", lanes=("default",))

    async def cycle() -> None:
        await engine.executions.create(submission)
        (claimed,) = await engine.claims.claim(order)
        await engine.outcomes.complete(claimed.proof, RESULT)

    return cycle


async def _wide(engine: Engine) -> dict[str, object]:
    budget = await engine.budgets.create_budget(_budget())
    quota = await engine.quotas.create_quota_policy(
        NewQuota(window_seconds=1, max_requests_per_window=1_000_000, max_concurrent=1_000_000)
    )
    return {
        "budget_ids": [budget.budget_id],
        "quota_ids": [quota.quota_policy_id],
        "concurrency_key": "bench",
        "concurrency_limit": 1_000_000,
    }


def _budget(parent_id: str = "") -> NewBudget:
    return NewBudget(
        parent_id=parent_id,
        dimensions=["tokens", "cost"],
        hard_limits=[_PLENTY, _PLENTY],
        soft_limits=[0, 0],
    )


async def spending(engine: Engine) -> Cycle:
    return _spend_at(engine, (await engine.budgets.create_budget(_budget())).budget_id)


async def _spending_in_a_tree(engine: Engine) -> Cycle:
    leaf = ""
    for _ in range(3):
        leaf = (await engine.budgets.create_budget(_budget(leaf))).budget_id
    return _spend_at(engine, leaf)


def _spend_at(engine: Engine, budget_id: str) -> Cycle:
    async def cycle() -> None:
        await engine.budgets.report_usage(budget_id, {"tokens": 3, "cost": 1}, str(uuid4()))

    return cycle


async def _explaining(engine: Engine) -> Cycle:
    """Explain the last of a thousand that wait, with limits that let it through."""
    policy = await _wide(engine)
    own = ""
    for _ in range(1_000):
        own = (await engine.executions.create(Submission(kind="work", policy=policy))).execution_id

    async def cycle() -> None:
        await engine.explanations.explain(own)

    return cycle
