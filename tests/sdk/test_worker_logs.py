"""What a worker logs about attempts that fail, and the threads of steps that block."""

import json
import logging
import threading

import pytest

from flowfabric import Context, ExecutionFailed, FlowFabric
from flowfabric.telemetry.logs import JsonLines


async def test_a_failed_attempt_is_a_warning_and_the_last_an_error_with_traceback(
    fabric: FlowFabric, caplog: pytest.LogCaptureFixture
) -> None:
    @fabric.task(retries=1, backoff=0)
    async def charge(secret: str) -> None:
        raise ConnectionError("the bank is closed")

    with caplog.at_level(logging.WARNING, "flowfabric.worker"):
        async with fabric.worker():
            run = await charge.submit("4111")
            with pytest.raises(ExecutionFailed):
                await run.result(timeout="20s")
    told = [one for one in caplog.records if run.id in one.getMessage()]
    assert [one.levelname for one in told] == ["WARNING", "ERROR"]
    retried, final = told
    assert "the bank is closed" in retried.getMessage()
    assert "attempt 0 failed, again " in retried.getMessage()
    assert "Traceback" not in retried.getMessage()
    assert "attempt 1 failed for good" in final.getMessage()
    assert "Traceback (most recent call last)" in final.getMessage()
    assert 'raise ConnectionError("the bank is closed")' in final.getMessage()
    assert "4111" not in caplog.text


async def test_a_failure_whose_text_cannot_be_encoded_is_logged_as_json(
    fabric: FlowFabric, caplog: pytest.LogCaptureFixture
) -> None:
    @fabric.task()
    async def fall() -> None:
        raise ValueError("\udc80 odd")

    with caplog.at_level(logging.ERROR, "flowfabric.worker"):
        async with fabric.worker():
            with pytest.raises(ExecutionFailed):
                await (await fall.submit()).result(timeout="20s")
    (final,) = [one for one in caplog.records if one.levelname == "ERROR"]
    assert "failed for good" in json.loads(JsonLines().format(final))["message"]


async def test_blocking_steps_have_as_many_threads_as_the_worker_has_slots(
    fabric: FlowFabric,
) -> None:
    slots = 40
    # Passed only when all of them run at the same time.
    together = threading.Barrier(slots)

    @fabric.task()
    async def meet(ctx: Context) -> int:
        await ctx.step("meet", together.wait, 60)
        return 1

    async with fabric.worker(concurrency=slots):
        runs = [await meet.submit() for _ in range(slots)]
        assert sum([await run.result(timeout="90s") for run in runs]) == slots
