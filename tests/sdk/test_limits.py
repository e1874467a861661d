"""Budgets and quotas by name: defined, changed, listed, and named by tasks, in every home."""

import pytest

from flowfabric import FlowFabric, FlowFabricError
from flowfabric.errors import BudgetNotFound, Conflict, QuotaNotFound


async def test_a_program_brings_its_limits_to_what_it_says(fabric: FlowFabric) -> None:
    assert (await fabric.budget("llm", hard={"tokens": 10, "usd": 3}, reset="1d")).is_new
    same = await fabric.budget("llm", hard={"tokens": 10, "usd": 3}, reset="1d", update=False)
    assert not same.is_new
    with pytest.raises(Conflict, match=r"budget llm .*hard_limits.tokens is 10, not 20") as found:
        await fabric.budget("llm", hard={"tokens": 20, "usd": 3}, update=False)
    assert "usd" not in str(found.value)
    # What is left out stays; a dimension that is not named has no limit any more.
    changed = await fabric.budget(
        "llm", hard={"tokens": 20}, soft={"tokens": 5}, on_hard_limit="fail"
    )
    status = await changed.status()
    assert status.hard_limits == {"tokens": 20, "usd": 0}
    assert status.soft_limits == {"tokens": 5, "usd": 0}
    assert (status.reset_interval_ms, status.on_hard_limit) == (86_400_000, "fail")
    assert (await (await fabric.budget("llm")).status()).hard_limits == status.hard_limits

    assert (await fabric.quota("api", starts=3)).is_new
    with pytest.raises(Conflict, match=r"quota api .*max_requests_per_window is 3, not 4"):
        await fabric.quota("api", starts=4, update=False)
    quota = await (await fabric.quota("api", window="1h", concurrent=2)).status()
    assert (quota.max_requests_per_window, quota.window_seconds) == (3, 3_600)
    assert quota.max_concurrent == 2


async def test_limits_are_listed_with_their_names(fabric: FlowFabric) -> None:
    await fabric.budget("b", hard={"t": 1})
    await fabric.budget("a", hard={"t": 2})
    await fabric.quota("q", concurrent=1)
    assert [one.name async for one in fabric.budgets()] == ["a", "b"]
    assert [(one.name, one.quota.max_concurrent) async for one in fabric.quotas()] == [("q", 1)]


async def test_limits_belong_to_the_namespace_of_the_fabric(fabric: FlowFabric) -> None:
    await fabric.budget("llm", hard={"t": 1})
    shop = FlowFabric.over(fabric.open, namespace="shop")

    @shop.task(budget="llm")
    async def answer() -> None: ...

    with pytest.raises(BudgetNotFound, match="llm: namespace shop"):
        await answer.submit()
    assert (await (await shop.budget("llm", hard={"t": 2})).status()).namespace == "shop"
    await answer.submit()
    (found,) = [one async for one in fabric.budgets()]
    assert found.budget.hard_limits == {"t": 1}


async def test_a_misspelt_limit_is_refused_by_its_name(fabric: FlowFabric) -> None:
    @fabric.task(budget="lmm")
    async def answer() -> None: ...

    @fabric.task(quotas=["apj"])
    async def ask() -> None: ...

    with pytest.raises(BudgetNotFound, match="lmm: namespace default has none of this name"):
        await answer.submit()
    with pytest.raises(QuotaNotFound, match="apj"):
        await ask.call()
    flow = fabric.flow()
    flow.add(answer)
    with pytest.raises(BudgetNotFound, match="lmm"):
        await flow.submit()
    (fault,) = await fabric.submit_many([answer.bind()])
    assert isinstance(fault, FlowFabricError)
    with pytest.raises(BudgetNotFound, match="lmm"):
        await fabric.schedule("daily", answer, every="1d")
    await fabric.budget("lmm", hard={"tokens": 1})
    await answer.submit()
