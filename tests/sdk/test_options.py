"""Every option of a task: what becomes of it, and that it has its effect."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flowfabric import Context, ExecutionExpired, ExecutionFailed, ExponentialBackoff, FlowFabric
from flowfabric.core.policy import FixedBackoff, StreamPolicy, read_policy
from flowfabric.errors import Conflict, MaxReplaysExhausted
from flowfabric.fabric.options import Options

HOUR_MS = 3_600_000


async def _nothing() -> None:
    """Declared, never run."""


def _policy(**options: Any) -> Any:
    """The policy of a call, as the engine reads it."""
    call = FlowFabric("memory://").task(**options)(_nothing).bind()
    return read_policy(str(call.submission.policy or ""))


@pytest.mark.parametrize(
    ("options", "member", "becomes"),
    [
        ({"needs": ["gpu", "a100"]}, "required_capabilities", ("a100", "gpu")),
        ({"fairness": "tenant 7"}, "fairness_key", "tenant 7"),
        ({"concurrency": ("db", 3)}, "concurrency_key", "db"),
        ({"concurrency": ("db", 3)}, "concurrency_limit", 3),
        ({"budget": "llm"}, "budget_ids", ("llm",)),
        (
            {"budget": "a", "budgets": ["b", "a"]},
            "budget_ids",
            ("a", "b"),
        ),
        ({"quota": "api"}, "quota_ids", ("api",)),
        (
            {"quotas": ["x", "y"]},
            "quota_ids",
            ("x", "y"),
        ),
        ({"dedup_window": "1h"}, "dedup_window_ms", HOUR_MS),
        ({"retention": timedelta(hours=1)}, "retention_ms", HOUR_MS),
        ({"max_replays": 2}, "max_replay_count", 2),
        ({"max_reclaims": 5}, "reclaim_cap", 5),
        (
            {"stream": StreamPolicy(retention_maxlen=7)},
            "stream_policy",
            StreamPolicy("buffered", 7),
        ),
    ],
)
def test_an_option_becomes_a_member_of_the_policy(
    options: Options, member: str, becomes: object
) -> None:
    assert getattr(_policy(**options), member) == becomes


def test_retries_timeouts_and_suspensions_become_policies_of_their_own() -> None:
    retry = _policy(retries=2, backoff="250ms", retry_on=["timeout"]).retry_policy
    assert (retry.max_retries, retry.backoff) == (2, FixedBackoff(250))
    assert retry.retryable_categories == ("timeout",)
    assert _policy(retries=1).retry_policy.backoff == ExponentialBackoff()
    assert _policy(retries=0).retry_policy is None
    timeouts = _policy(timeout="5m", deadline=7_200).timeout_policy
    assert (timeouts.attempt_timeout_ms, timeouts.execution_deadline_ms) == (300_000, 2 * HOUR_MS)
    assert _policy(on_suspend_timeout="cancel").suspension_policy.timeout_behavior == "cancel"


def test_options_of_a_call_change_only_what_they_name() -> None:
    task = FlowFabric("memory://").task(lane="research", retries=3, tags={"app.a": "1"})(_nothing)
    call = task.options(priority=9, lane="urgent").bind().submission
    assert (call.lane, call.priority, call.tags) == ("urgent", 9, {"app.a": "1"})
    retry = read_policy(str(call.policy)).retry_policy
    assert retry is not None
    assert retry.max_retries == 3
    assert task.lane == "research"


async def test_a_delay_is_a_length_or_an_instant(fabric: FlowFabric) -> None:
    @fabric.task
    async def later() -> None:
        """Never run."""

    at = datetime.now(UTC) + timedelta(hours=2)
    for delay in ("2h", at):
        run = await later.options(delay=delay).submit()
        assert await run.state() == "delayed"
        (blocker,) = (await run.explain()).blockers
        assert blocker.until is not None
        assert abs(blocker.until - at.timestamp() * 1000) < 60_000


async def test_a_deadline_ends_it_wherever_it_is(fabric: FlowFabric) -> None:
    @fabric.task(deadline="100ms")
    async def lost(ctx: Context) -> None:
        await ctx.wait_for("never")

    async with fabric.worker():
        with pytest.raises(ExecutionExpired, match="execution_deadline"):
            await (await lost.submit()).result(timeout="20s")


async def test_a_key_finds_the_first_and_its_result(fabric: FlowFabric) -> None:
    starts: list[int] = []

    @fabric.task(idempotency_key="order 7")
    async def order(n: int) -> int:
        starts.append(n)
        return n

    runs = await asyncio.gather(*(order.submit(7) for _ in range(5)))
    assert len({run.id for run in runs}) == 1
    async with fabric.worker():
        assert {await run.result(timeout="20s") for run in runs} == {7}
    assert starts == [7]
    with pytest.raises(Conflict, match="another input_payload"):
        await order.submit(8)


async def test_only_the_categories_named_are_tried_again(fabric: FlowFabric) -> None:
    @fabric.task(retries=3, backoff="1ms", retry_on=["transient"])
    async def stumble(category: str) -> None:
        fault = ValueError("over a stone")
        fault.category = category  # type: ignore[attr-defined]
        raise fault

    async with fabric.worker():
        for category, attempts in (("transient", 4), ("permanent", 1)):
            run = await stumble.submit(category)
            with pytest.raises(ExecutionFailed):
                await run.result(timeout="20s")
            assert len(await run.attempts()) == attempts


async def test_replays_are_counted(fabric: FlowFabric) -> None:
    @fabric.task(max_replays=1)
    async def count() -> None:
        """Nothing to do."""

    async with fabric.worker():
        run = await count.submit()
        await run.result(timeout="20s")
        await run.replay("again")
        await run.result(timeout="20s")
        with pytest.raises(MaxReplaysExhausted):
            await run.replay("and again")
    assert [one.type for one in await run.attempts()] == ["initial", "replay"]


async def test_a_flood_of_one_key_waits_behind_the_others(fabric: FlowFabric) -> None:
    order: list[str] = []

    @fabric.task
    async def serve(who: str) -> None:
        order.append(who)

    flood = [serve.options(fairness="flood").bind("flood") for _ in range(20)]
    await fabric.submit_many(flood)
    runs = [await serve.options(fairness=who).submit(who) for who in ("ada", "bob")]
    async with fabric.worker(concurrency=1, prefetch=0):
        for run in runs:
            await run.result(timeout="20s")
    assert max(order.index("ada"), order.index("bob")) < 20


async def test_an_option_names_another_namespace(fabric: FlowFabric) -> None:
    @fabric.task(namespace="elsewhere")
    async def work() -> None:
        """Never run: the worker is of another namespace."""

    async with fabric.worker():
        run = await work.submit()
        assert (await run.info()).namespace == "elsewhere"
        assert [one.code for one in (await run.explain()).blockers] == ["no_worker"]
