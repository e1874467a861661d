"""Commands that act on flows, budgets and signals, over HTTP."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from typer.testing import CliRunner, Result

from flowfabric import Context, FlowFabric
from flowfabric.cli.program import app
from flowfabric.config import Settings
from tests.sdk.until import reaches
from tests.serving import TOKEN, Server, serving


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as started:
        yield started


@pytest.fixture
async def fabric(server: Server) -> AsyncIterator[FlowFabric]:
    async with FlowFabric(server.url, token=TOKEN, settings=Settings()) as opened:
        yield opened


async def _run(server: Server, *words: str, typed: str = "") -> Result:
    environment = {"FF_API_TOKEN": TOKEN, "FF_URL": server.url, "COLUMNS": "200"}

    def invoke() -> Result:
        return CliRunner().invoke(app, list(words), input=typed, env=environment)

    return await asyncio.to_thread(invoke)


async def _ok(server: Server, *words: str, typed: str = "") -> str:
    result = await _run(server, *words, typed=typed)
    assert result.exit_code == 0, (result.output, result.exception)
    return str(result.output)


async def test_a_signal_arrives_and_its_token_is_not_shown(
    server: Server, fabric: FlowFabric
) -> None:
    @fabric.task
    async def wait(ctx: Context) -> object:
        signal = await ctx.wait_for("paid")
        assert signal is not None
        return signal.payload

    async with fabric.worker():
        run = await wait.submit()
        await reaches(fabric, run, "suspended")
        (found,) = (await fabric.admin.list_pending_waitpoints(run.id)).items
        token = (await fabric.admin.waitpoint_token(run.id, found.waitpoint_id)).token.reveal()
        command = ("signal", run.id, "paid", '{"sum": 7}', "--waitpoint", found.waitpoint_id)
        wrong = token[:-1] + ("0" if token[-1] != "0" else "1")
        refused = await _run(server, *command, typed=f"{wrong}\n")
        assert refused.exit_code == 1
        assert "invalid_token" in refused.output
        told = await _ok(server, *command, typed=f"{token}\n")
        assert "accepted: resume_condition_satisfied" in told
        assert token not in told + refused.output
        assert await run.result(timeout="20s") == {"sum": 7}


async def test_a_flow_is_drawn_cancelled_and_replayed(server: Server, fabric: FlowFabric) -> None:
    @fabric.task(lane="slow")
    async def first() -> int:
        return 1

    @fabric.task(lane="slow")
    async def second(_: int) -> int:
        raise OSError("no")

    flow = fabric.flow()
    flow.add(second, flow.add(first))
    whole = await flow.submit()
    drawn = await _ok(server, "flow", whole.id)
    assert "0 of 2 completed" in drawn
    assert "first  waiting" in drawn
    assert "after first" in drawn
    assert await _ok(server, "flow", whole.id, "--cancel", "--reason", "enough") == "cancelled\n"
    assert (await fabric.admin.describe_flow(whole.id)).public_flow_state == "cancelled"
    refused = await _run(server, "flow", whole.id, "--replay")
    assert refused.exit_code == 1
    assert "flow_already_terminal" in refused.output
    failing = await flow.submit()
    async with fabric.worker(lanes=["slow"]):
        await failing.wait(timeout="20s")
    assert "1 replayed" in await _ok(server, "flow", failing.id, "--replay")
    drawn = await _ok(server, "flow", failing.id)
    assert "1 of 2 completed" in drawn
    assert "second  waiting" in drawn


async def test_limits_are_listed_and_changed_by_name(server: Server, fabric: FlowFabric) -> None:
    assert "no budgets" in await _ok(server, "budgets")
    await fabric.budget("llm", hard={"tokens": 10})
    await fabric.quota("api", starts=5, concurrent=2)
    shown = await _ok(server, "budget", "llm", "--hard", "tokens=12", "--reset-every", "1d")
    assert shown.splitlines()[-1].split() == ["tokens", "0", "0", "none", "12"]
    assert "llm" in await _ok(server, "budgets")
    changed = await _ok(server, "quota", "api", "--starts", "7", "--window", "1h")
    assert changed.splitlines()[-1].split() == ["7", "3600", "s", "0", "2", "0"]
    assert (await _ok(server, "quotas")).splitlines()[-1].split()[:2] == ["api", "7"]
    assert '"max_concurrent":2' in (await _ok(server, "quotas", "--json")).replace(" ", "")
    wrong = await _run(server, "budget", "llm", "--hard", "tokens")
    assert "expected NAME=N" in wrong.output


async def test_a_budget_is_shown_and_reset(server: Server, fabric: FlowFabric) -> None:
    budget = await fabric.budget("llm", soft={"tokens": 5}, hard={"tokens": 10})
    await fabric.admin.report_usage(budget.id, {"tokens": 7})
    shown = await _ok(server, "budget", "llm")
    assert shown.splitlines()[-1].split() == ["tokens", "7", "0", "5", "10"]
    assert (await _ok(server, "budget", budget.id, "--reset")).splitlines()[-1].split() == [
        *("tokens", "0", "0", "5", "10")
    ]
