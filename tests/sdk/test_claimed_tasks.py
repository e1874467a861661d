"""Tasks claimed by hand: permits, landing, and what becomes of dropped ones."""

import gc
import logging
from datetime import UTC, datetime, timedelta

import pytest

from flowfabric import ClaimedTask, ConfigError, ExecutionFailed, FlowFabric
from flowfabric.core.condition_checks import Fresh, UsePending
from flowfabric.core.conditions import AllOf, ByName, Single, composite, signal_set, single
from flowfabric.errors import AlreadySatisfied, ExecutionNotActive, TransportFault
from flowfabric.operations.attempts import NewFrame, Satisfied
from flowfabric.operations.executions import Submission
from flowfabric.worker.claimed import SuspendTerms
from flowfabric.worker.claiming import Claimer
from flowfabric.worker.session import LEASE_IS_GONE
from tests.sdk.dropping import dropping
from tests.sdk.until import reaches, signal_by_token


async def test_a_permit_comes_first_and_is_given_back(fabric: FlowFabric) -> None:
    runs = [await fabric.submit("k", {"n": n}, priority=3 - n) for n in range(3)]
    async with fabric.claimer(permits=2) as claimer:
        first, second = await claimer.claim(10)
        assert claimer.free_permits == 0
        assert await claimer.claim_next() is None
        assert first.input_payload == b'{"n":0}'
        await first.complete(b"1", "json")
        assert claimer.free_permits == 1
        third = await claimer.claim_next()
        assert third is not None
        assert third.execution_id == runs[2].id
        await second.fail("no", "permanent", retryable=False)
        await third.delay_execution(0)
    assert await runs[0].result() == 1
    with pytest.raises(ExecutionFailed):
        await runs[1].result()
    assert await runs[2].state() == "waiting"


async def test_a_consumed_task_refuses_further_calls(fabric: FlowFabric) -> None:
    await fabric.submit("k")
    async with fabric.claimer() as claimer:
        task = await claimer.claim_next()
        assert task is not None
        await task.append_frames([NewFrame(frame_type="x", payload=b"1", seq=1)])
        await task.complete()
        for call in (task.complete(), task.fail("x"), task.resume_signals()):
            with pytest.raises(ConfigError):
                await call


async def test_a_lost_answer_does_not_land_and_the_repeat_gets_it(fabric: FlowFabric) -> None:
    unreliable, _ = await dropping(fabric, "finish", 1)
    run = await fabric.submit("k")
    async with unreliable.claimer() as claimer:
        task = await claimer.claim_next()
        assert task is not None
        with pytest.raises(TransportFault):
            await task.complete(b"1", "json")
        assert not task.is_consumed
        assert claimer.free_permits == 0
        await task.complete(b"1", "json")
        assert claimer.free_permits == 1
    assert await run.result() == 1


async def test_a_refusal_lands(fabric: FlowFabric) -> None:
    run = await fabric.submit("k")
    async with fabric.claimer() as claimer:
        task = await claimer.claim_next()
        assert task is not None
        await run.cancel("enough")
        with pytest.raises(ExecutionNotActive):
            await task.complete()
        assert task.is_consumed
        assert not task.is_lease_healthy()


async def test_suspending_by_hand(fabric: FlowFabric) -> None:
    run = await fabric.submit("k")
    terms = SuspendTerms(condition=signal_set("go"))
    async with fabric.claimer() as claimer:
        task = await claimer.claim_next()
        assert task is not None
        waitpoint = await task.create_pending_waitpoint("here", "1h")
        await fabric.signal(run.id, waitpoint.waitpoint_id, waitpoint.waitpoint_token, "go")
        met = await task.try_suspend_on_pending(waitpoint, terms)
        assert isinstance(met, Satisfied)
        assert not task.is_consumed
        suspended = await task.suspend(terms)
        assert task.is_consumed
        await reaches(fabric, run, "suspended")
        (own,) = suspended.waitpoints
        await fabric.signal(run.id, own.waitpoint_id, own.waitpoint_token.reveal(), "go", 7)
        again = await claimer.claim_next()
        assert again is not None
        assert again.attempt_type == "resumed"
        assert [signal.payload for signal in await again.resume_signals()] == [b"7"]
        await again.complete()


async def test_dropped_tasks_are_reported_and_free_their_permit(
    fabric: FlowFabric, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        await fabric.submit("k")
    with caplog.at_level(logging.WARNING):
        async with fabric.claimer() as claimer:
            async with claimer.claim_one() as task:
                assert task is not None
            assert claimer.free_permits == 1
            assert "dropped without terminal operation" in caplog.text
            caplog.clear()
            lost = await claimer.claim_next()
            assert lost is not None
            del lost
            gc.collect()
            assert claimer.free_permits == 1
            assert "dropped without terminal operation" in caplog.text


async def test_an_exception_in_the_block_fails_the_task(fabric: FlowFabric) -> None:
    run = await fabric.submit("k")

    async def stumble(claimer: Claimer) -> None:
        async with claimer.claim_one():
            raise KeyError("oh")

    async with fabric.claimer() as claimer:
        with pytest.raises(KeyError):
            await stumble(claimer)
    with pytest.raises(ExecutionFailed) as caught:
        await run.result()
    assert (caught.value.reason, caught.value.category) == ("KeyError('oh')", "handler_error")


async def _claimed(claimer: Claimer) -> ClaimedTask:
    task = await claimer.claim_next()
    assert task is not None
    return task


async def test_a_holder_may_cancel_delay_or_wait_for_children(fabric: FlowFabric) -> None:
    runs = [await fabric.submit("k", {"n": n}, priority=3 - n) for n in range(3)]
    async with fabric.claimer(permits=3) as claimer:
        await (await _claimed(claimer)).cancel("not needed")
        await (await _claimed(claimer)).delay_execution(datetime.now(UTC) + timedelta(hours=1))
        parent = await _claimed(claimer)
        port = (await fabric.open()).worker
        child = await port.submit_child(parent.claim, Submission(kind="child", idempotency_key="c"))
        await parent.move_to_waiting_children([child])
        assert [await run.state() for run in runs] == ["cancelled", "delayed", "waiting_children"]
        young = await _claimed(claimer)
        assert young.execution_id == child
        await young.complete()
        # Nothing is left to wait for: it goes on in the same attempt.
        again = await _claimed(claimer)
        assert (again.execution_id, again.attempt_id) == (runs[2].id, parent.attempt_id)
        await again.complete()


async def test_a_holder_renews_tells_progress_and_spends(fabric: FlowFabric) -> None:
    budget = await fabric.budget("llm", hard={"tokens": 10})
    run = await fabric.submit("k")
    async with fabric.claimer() as claimer:
        task = await _claimed(claimer)
        await task.update_progress(40, "nearly half")
        with pytest.raises(ConfigError, match=r"pct: expected 0\.\.100, got 101"):
            await task.update_progress(101)
        before = (await run.info()).current_lease
        assert before is not None
        assert await task.renew_lease() >= before.expires_at
        assert task.consecutive_renewal_failures() == 0
        spent = await task.report_usage(budget.id, {"tokens": 7}, "first")
        assert spent.outcome == "ok"
        assert (await task.report_usage(budget.id, {"tokens": 7}, "first")).outcome == (
            "already_applied"
        )
        assert (await task.report_usage(budget.id, {"tokens": 7}, "next")).outcome == "hard_breach"
        await fabric.admin.revoke_lease(run.id)
        with pytest.raises(LEASE_IS_GONE):
            await task.renew_lease()
        assert not task.is_lease_healthy()
    assert (await budget.status()).usage == {"tokens": 7}


async def test_a_holder_hands_out_an_address_and_waits_for_signals(fabric: FlowFabric) -> None:
    run = await fabric.submit("k")
    async with fabric.claimer() as claimer:
        task = await _claimed(claimer)
        issued = await task.create_pending_waitpoint("callback", "1h")
        await fabric.signal(run.id, issued.waitpoint_id, issued.waitpoint_token, "paid", {"n": 1})
        await task.suspend_for_signals(["go", "on"], timeout="1h")
        assert await run.state() == "suspended"
        await signal_by_token(fabric, run, "go")
        assert await run.state() == "suspended"
        await signal_by_token(fabric, run, "on")
        again = await _claimed(claimer)
        assert {one.signal_name for one in await again.resume_signals()} == {"go", "on"}
        await again.complete()


async def test_a_holder_reads_its_own_output(fabric: FlowFabric) -> None:
    await fabric.submit("k")
    async with fabric.claimer() as claimer:
        task = await _claimed(claimer)
        assert task.execution_kind == "k"
        assert task.execution_id in repr(task)
        await task.append_frame("log", b"one", "trace 7")
        await task.append_frame_with_mode("log", b"two", "best_effort", ttl="1m")
        page = await task.read_stream()
        assert [stored.frame.payload for stored in page.frames] == [b"one", b"two"]
        assert page.frames[0].frame.correlation_id == "trace 7"
        lasting = await task.tail_stream(visibility="exclude_best_effort")
        assert [stored.frame.payload for stored in lasting.frames] == [b"one"]
        await task.complete()


async def test_a_bad_argument_leaves_the_task_usable(fabric: FlowFabric) -> None:
    run = await fabric.submit("k")
    unbound = SuspendTerms(
        condition=single("there", None), waitpoints=(Fresh(waitpoint_key="here"),)
    )
    async with fabric.claimer() as claimer:
        task = await _claimed(claimer)
        for call in (
            task.fail("r" * 5000),
            task.fail("r", "c" * 200),
            task.cancel("r" * 5000),
            task.complete(b"x" * (2 << 20)),
            task.suspend(unbound),
            task.read_stream(limit=0),
            task.tail_stream(limit=0),
            task.tail_stream(block="40s"),
            task.append_frame("t" * 200, b""),
            task.create_pending_waitpoint("k" * 2000, "1h"),
        ):
            with pytest.raises(ConfigError):
                await call
            assert not task.is_consumed
            assert task.is_lease_healthy()
        assert claimer.free_permits == 0
        await task.complete(b"1", "json")
    assert await run.result() == 1


async def test_signals_of_an_earlier_attempt_are_not_those_of_this_one(fabric: FlowFabric) -> None:
    run = await fabric.submit("k", retries=1, backoff=0)
    async with fabric.claimer() as claimer:
        await (await _claimed(claimer)).suspend_for_signals(["go"])
        await signal_by_token(fabric, run, "go")
        resumed = await _claimed(claimer)
        assert [one.signal_name for one in await resumed.resume_signals()] == ["go"]
        await resumed.fail("again")
        (retried,) = await claimer.claim(1, "20s")
        assert retried.attempt_index == 1
        assert await retried.resume_signals() == ()
        await retried.complete()


async def test_a_suspend_takes_waitpoints_an_instant_and_a_key(fabric: FlowFabric) -> None:
    run = await fabric.submit("k")
    both = composite(AllOf((Single("left", ByName("go")), Single("right", ByName("go")))))
    terms = SuspendTerms(
        condition=both,
        waitpoints=(Fresh(waitpoint_key="left"), Fresh(waitpoint_key="right")),
        timeout=datetime.now(UTC) + timedelta(hours=1),
        continuation="page 7",
        idempotency_key="once",
    )
    async with fabric.claimer() as claimer:
        suspended = await (await _claimed(claimer)).suspend(terms)
        left, right = suspended.waitpoints
        assert (left.waitpoint_key, right.waitpoint_key) == ("left", "right")
        for one in (left, right):
            assert await run.state() == "suspended"
            await fabric.signal(run.id, one.waitpoint_id, one.waitpoint_token.reveal(), "go")
        again = await _claimed(claimer)
        assert len(await again.resume_signals()) == 2
        await again.complete()


async def test_a_condition_met_before_names_its_waitpoint(fabric: FlowFabric) -> None:
    run = await fabric.submit("k")
    async with fabric.claimer() as claimer:
        task = await _claimed(claimer)
        issued = await task.create_pending_waitpoint("here", "1h")
        await fabric.signal(run.id, issued.waitpoint_id, issued.waitpoint_token, "go", 7)
        terms = SuspendTerms(
            condition=signal_set("go"), waitpoints=(UsePending(issued.waitpoint_id),)
        )
        with pytest.raises(AlreadySatisfied) as caught:
            await task.suspend(terms)
        met = caught.value.details
        assert (met["waitpoint_id"], met["waitpoint_key"]) == (issued.waitpoint_id, "here")
        assert met["waitpoint_token"] == issued.waitpoint_token
        assert not task.is_consumed
        await task.complete()
    assert await run.state() == "completed"


async def test_a_holder_reads_so_many_frames_of_the_kind_it_wants(fabric: FlowFabric) -> None:
    await fabric.submit("k")
    async with fabric.claimer() as claimer:
        task = await _claimed(claimer)
        for text in (b"one", b"two", b"three"):
            await task.append_frame("log", text)
        await task.append_frame_with_mode("log", b"live", "best_effort", ttl="1m")
        assert (await task.tail_stream(limit=2)).count == 2
        assert (await task.read_stream(visibility="exclude_best_effort")).count == 3
        await task.complete()
