"""Suspending: what it writes, what it refuses, and what a repeat is told."""

from typing import Any

import msgspec
import pytest

from flowfabric.core.condition_checks import Fresh, UsePending
from flowfabric.core.conditions import Condition, composite, signal_set, single
from flowfabric.core.facets import facets
from flowfabric.core.handles import BACKEND_TAGS, Handle
from flowfabric.core.plan import Guard, Plan
from flowfabric.core.suspend_outcomes import Suspended
from flowfabric.core.suspensions import ResumePolicy
from flowfabric.engine.attempts.claimed import Claimed
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.engine.suspensions.suspend import backend_name
from flowfabric.errors import (
    AdditionalWaitpointBindingMalformed,
    AlreadySuspended,
    ExecutionNotActive,
    ExecutionNotFound,
    FenceRequired,
    FlowFabricError,
    HandleFromOtherBackend,
    HmacSecretNotInitialized,
    InvalidInput,
    InvalidLeaseForSuspend,
    LeaseExpired,
    LeaseRevoked,
    PartialFenceTriple,
    StaleLease,
    StreamClosed,
)
from flowfabric.operations.attempts import SuspendOrder
from flowfabric.operations.streams import Frame
from tests.conformance.driver import EVERYWHERE, Driver, fenced, refused, stranger, unfenced
from tests.conformance.waiting import GO, all_of, documents, drop_ring, order, pause, pause_claimed

FRAME = Frame(frame_type="text", payload=b"x")
REASONS = {
    "waiting_for_signal": ("signal", "waiting_for_signal"),
    "waiting_for_approval": ("approval", "waiting_for_approval"),
    "waiting_for_callback": ("callback", "waiting_for_callback"),
    "waiting_for_tool_result": ("tool_result", "waiting_for_tool_result"),
    "waiting_for_operator_review": ("operator", "paused_by_operator"),
    "manual_pause": ("operator", "paused_by_operator"),
    "paused_by_policy": ("policy", "paused_by_policy"),
    "paused_by_budget": ("budget", "waiting_for_budget"),
    "step_boundary": ("signal", "waiting_for_signal"),
    "waiting_for_first": ("first", "waiting_for_signal"),
    "waiting_for_godot": ("signal", "waiting_for_signal"),
}


def handle_of(driver: Driver, claimed: Claimed, **changes: Any) -> Handle:
    tag = driver.engine.deps.store.backend.describe().tag
    return msgspec.structs.replace(claimed.handle(backend_name(tag)), **changes)


async def test_a_suspended_execution_gives_up_its_lease_and_keeps_its_attempt(
    driver: Driver,
) -> None:
    policy = {"timeout_policy": {"attempt_timeout_ms": 5_000}}
    claimed = await driver.started(policy=policy, deadline_at=driver.clock() + 90_000)
    driver.clock.advance(1_000)
    paused = await pause_claimed(driver, claimed, timeout_ms=7_000)
    record = await driver.record(paused.execution_id)
    primary = paused.at()
    assert (record.state, record.reason, record.next) == ("suspended", "signal", "resume")
    assert record.detail == (
        f"suspended: waitpoint {primary.waitpoint_id} awaiting waiting_for_signal"
    )
    assert (record.suspension_id, record.waitpoint_id) == (
        paused.details.suspension_id,
        primary.waitpoint_id,
    )
    assert (record.lease_id, record.worker_id, record.lease_until) == ("", "", 0)
    assert (record.lease_epoch, record.attempt_id) == (1, claimed.record.attempt_id)
    assert (record.wake_at, record.deadline_at) == (driver.clock() + 7_000, driver.clock() + 89_000)
    assert (record.attempt_until, record.attempt_left_ms) == (0, 4_000)
    assert record.attempt is not None
    assert (record.attempt.state, record.attempt.suspension_id) == (
        "suspended",
        paused.details.suspension_id,
    )
    assert primary.waitpoint_key == f"wpk:{primary.waitpoint_id}"


async def test_the_lease_history_tells_the_release(driver: Driver) -> None:
    paused = await pause(driver)
    entry = (await driver.history(paused.execution_id))[-1]
    assert (entry.event, entry.fields["reason"]) == ("released", "suspend")
    assert entry.fields["lease_id"] == paused.claimed.record.lease_id
    (event,) = [each for each in await driver.events("lease") if each.kind == "released"]
    assert event.families == ("lease",)


@pytest.mark.parametrize("code", REASONS)
async def test_a_reason_code_shows_as_its_blocking_reason(driver: Driver, code: str) -> None:
    paused = await pause(driver, reason_code=code)
    record = await driver.record(paused.execution_id)
    reason, blocking = REASONS[code]
    assert (record.reason, facets(record, strict=True).blocking_reason) == (reason, blocking)
    assert (await paused.suspension()).reason_code == code


async def test_the_suspension_keeps_what_was_asked_for(driver: Driver) -> None:
    paused = await pause(
        driver,
        signal_set("a", "b"),
        requested_by="policy",
        timeout_at=driver.clock() + 5,
        timeout_behavior="auto_resume",
        continuation_metadata_pointer="s3://checkpoint",
        resume_policy=ResumePolicy(resume_delay_ms=7, consume_matched_signals=False),
    )
    kept = await paused.suspension()
    assert (kept.requested_by, kept.continuation_metadata_pointer) == ("policy", "s3://checkpoint")
    assert (kept.created_at, kept.timeout_at) == (driver.clock(), driver.clock() + 5)
    assert kept.timeout_behavior == kept.resume_condition.timeout_behavior
    assert kept.timeout_behavior == "auto_resume_with_timeout_signal"
    assert kept.resume_condition.signal_match_mode == "all"
    assert (kept.resume_policy.resume_delay_ms, kept.resume_policy.consume_matched_signals) == (
        7,
        False,
    )


async def test_every_waitpoint_has_a_token_of_its_own(driver: Driver) -> None:
    bindings = (Fresh(waitpoint_key="a"), Fresh(stranger(), "b"), Fresh("", "c"))
    paused = await pause(driver, composite(all_of("a", "b", "c")), waitpoints=bindings)
    assert [one.waitpoint_key for one in paused.details.waitpoints] == ["a", "b", "c"]
    assert paused.details.waitpoints[1].waitpoint_id == bindings[1].waitpoint_id
    tokens = {one.waitpoint_token.reveal() for one in paused.details.waitpoints}
    assert len(tokens) == 3
    assert [one.waitpoint_key for one in (await paused.suspension()).additional_waitpoints] == [
        "b",
        "c",
    ]


@pytest.mark.parametrize(
    ("condition", "key"), [(single("mine"), "mine"), (composite(all_of("x")), "x")]
)
async def test_a_default_waitpoint_takes_the_key_the_condition_names(
    driver: Driver, condition: Any, key: str
) -> None:
    assert (await pause(driver, condition)).at().waitpoint_key == key


async def test_a_stream_stays_open_but_takes_nothing_while_suspended(driver: Driver) -> None:
    paused = await pause(driver)
    with refused(StreamClosed):
        await driver.engine.streams.append(paused.held, 0, (FRAME,))
    await paused.signal()
    again = await paused.resumed()
    await driver.engine.streams.append(again.proof, 0, (FRAME,))
    attempt = (await driver.record(paused.execution_id)).attempt
    assert attempt is not None
    assert attempt.closed_at == 0


# ---- timeouts


async def test_without_a_timeout_the_policys_applies(driver: Driver) -> None:
    policy = {"suspension_policy": {"default_timeout_ms": 4_000, "timeout_behavior": "escalate"}}
    kept = await (await pause(driver, submit={"policy": policy})).suspension()
    assert (kept.timeout_at, kept.timeout_behavior) == (driver.clock() + 4_000, "escalate")
    named = await pause(driver, submit={"policy": policy}, timeout_behavior="cancel")
    assert (await named.suspension()).timeout_behavior == "cancel"


async def test_a_timeout_of_the_call_brings_its_own_behaviour(driver: Driver) -> None:
    policy = {"suspension_policy": {"default_timeout_ms": 4_000, "timeout_behavior": "escalate"}}
    kept = await (await pause(driver, submit={"policy": policy}, timeout_ms=9)).suspension()
    assert (kept.timeout_at, kept.timeout_behavior) == (driver.clock() + 9, "fail")


async def test_without_any_timeout_nothing_is_armed(driver: Driver) -> None:
    paused = await pause(driver)
    record = await driver.record(paused.execution_id)
    assert (record.wake_at, record.due_at) == (0, 0)
    assert (await paused.suspension()).timeout_at == 0


# ---- refusals


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"waitpoints": ()}, "waitpoints_empty"),
        ({"condition": Condition(condition_type="timeout_only")}, "timeout_only_without_deadline"),
        ({"condition": single("b"), "waitpoints": (Fresh("", "a"),)}, "waitpoint_key_mismatch"),
        ({"timeout_at": 1}, "timeout_at_in_past"),
        ({"timeout_at": 1, "timeout_ms": 1}, "timeout: give either timeout_at or timeout_ms"),
    ],
)
async def test_what_does_not_hang_together_is_refused_before_anything_is_read(
    driver: Driver, fields: dict[str, Any], detail: str
) -> None:
    fields = {"condition": GO} | fields
    for holder in (unfenced(stranger()), await driver.nowhere()):
        with refused(InvalidInput, detail):
            await driver.engine.suspensions.suspend(holder, order(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"suspension_id": "nonsense"},
        {"waitpoints": (Fresh("nonsense", "k"),)},
        {"reason_code": ""},
        {"requested_by": "somebody"},
        {"timeout_behavior": "explode"},
        {"timeout_ms": -1},
        {"timeout_ms": 1.5},
        {"timeout_at": True},
        {"resume_policy": ResumePolicy(resume_delay_ms=-1)},
        {"continuation_metadata_pointer": "x" * 5_000},
        {"idempotency_key": "x" * 1_025},
        {"op": "x" * 65},
    ],
)
async def test_values_are_checked(driver: Driver, fields: dict[str, Any]) -> None:
    held = await driver.reach("active")
    before = await driver.snapshot()
    with refused(InvalidInput):
        await driver.engine.suspensions.suspend(held, order(**fields))
    assert await driver.snapshot() == before


async def test_a_missing_execution_is_told_before_a_missing_fence(driver: Driver) -> None:
    nowhere = await driver.nowhere()
    for holder in (nowhere, unfenced(nowhere.execution_id), fenced(nowhere, lease_id="")):
        with refused(ExecutionNotFound):
            await driver.engine.suspensions.suspend(holder, order())


async def test_the_fence_must_be_whole(driver: Driver) -> None:
    held = await driver.reach("active")
    with refused(FenceRequired):
        await driver.engine.suspensions.suspend(unfenced(held.execution_id), order())
    with refused(FenceRequired):
        operator = unfenced(held.execution_id, "operator_override")
        await driver.engine.suspensions.suspend(operator, order())
    with refused(PartialFenceTriple):
        await driver.engine.suspensions.suspend(fenced(held, lease_id=""), order())


_REFUSALS: dict[str, type[FlowFabricError]] = {
    "unmarked": LeaseExpired,
    "lease_expired": LeaseExpired,
    "lease_revoked": LeaseRevoked,
}


@pytest.mark.parametrize("situation", [each for each in EVERYWHERE if each != "active"])
async def test_only_the_holder_of_a_live_lease_suspends(driver: Driver, situation: str) -> None:
    held = await driver.reach(situation)
    holder = held if held.lease_id else LeaseProof(held.execution_id, stranger(), 1, stranger())
    before = await driver.snapshot()
    with refused(_REFUSALS.get(situation, ExecutionNotActive)):
        await driver.engine.suspensions.suspend(holder, order())
    assert await driver.snapshot() == before


@pytest.mark.parametrize("part", ["lease_id", "lease_epoch", "attempt_id"])
async def test_every_part_of_the_fence_counts(driver: Driver, part: str) -> None:
    held = await driver.reach("active")
    wrong = {"lease_id": stranger(), "lease_epoch": 9, "attempt_id": stranger()}
    with refused(StaleLease):
        await driver.engine.suspensions.suspend(fenced(held, **{part: wrong[part]}), order())


async def test_another_attempt_index_is_refused_behind_the_lease(driver: Driver) -> None:
    claimed = await driver.started()
    for holder in (claimed.proof, fenced(claimed.proof)):
        with refused(InvalidLeaseForSuspend):
            await driver.engine.suspensions.suspend(holder, order(attempt_index=1))
    with refused(InvalidLeaseForSuspend):
        handle = handle_of(driver, claimed, attempt_index=1)
        await driver.engine.suspensions.suspend(handle, order())
    driver.clock.advance(30_000)
    with refused(LeaseExpired):
        await driver.engine.suspensions.suspend(claimed.proof, order(attempt_index=1))


@pytest.mark.parametrize("extra", [Fresh("nonsense", "b"), Fresh(stranger(), "b\0")])
async def test_a_malformed_extra_waitpoint_has_its_own_code(driver: Driver, extra: Fresh) -> None:
    held = await driver.reach("active")
    key = extra.waitpoint_key
    asked = order(composite(all_of("a", key)), waitpoints=(Fresh("", "a"), extra))
    with refused(AdditionalWaitpointBindingMalformed):
        await driver.engine.suspensions.suspend(held, asked)
    with refused(StaleLease):
        stale = fenced(held, lease_id=stranger())
        await driver.engine.suspensions.suspend(stale, asked)


async def test_without_a_signing_key_nothing_is_suspended(driver: Driver) -> None:
    held = await driver.reach("active")
    await drop_ring(driver)
    with refused(HmacSecretNotInitialized):
        await driver.engine.suspensions.suspend(held, order())
    with refused(StaleLease):
        await driver.engine.suspensions.suspend(fenced(held, attempt_id=stranger()), order())
    assert (await driver.record(held.execution_id)).state == "active"


# ---- handles


async def test_a_worker_may_suspend_by_its_handle(driver: Driver) -> None:
    claimed = await driver.started()
    outcome = await driver.engine.suspensions.suspend(handle_of(driver, claimed), order())
    assert outcome.handle == handle_of(driver, claimed, kind="suspended")


async def test_a_suspended_handle_is_refused_at_once(driver: Driver) -> None:
    claimed = await driver.started()
    outcome = await driver.engine.suspensions.suspend(claimed.proof, order(idempotency_key="k"))
    nonsense = order(waitpoints=(), idempotency_key="k")
    with refused(AlreadySuspended):
        await driver.engine.suspensions.suspend(outcome.handle, nonsense)


async def test_a_handle_of_another_store_is_refused_behind_the_arguments(driver: Driver) -> None:
    own = driver.engine.deps.store.backend.describe().family
    other = next(name for name in BACKEND_TAGS if name != own)
    foreign = handle_of(driver, await driver.started(), backend=other)
    with refused(InvalidInput, "waitpoints_empty"):
        await driver.engine.suspensions.suspend(foreign, order(waitpoints=()))
    with refused(HandleFromOtherBackend) as caught:
        await driver.engine.suspensions.suspend(foreign, order())
    assert caught.value.detail.endswith(f"actual={other}")


async def test_the_service_path_reads_what_it_was_not_told(driver: Driver) -> None:
    claimed = await driver.started()
    outcome = await driver.engine.suspensions.try_suspend(fenced(claimed.proof), order())
    assert isinstance(outcome, Suspended)
    assert outcome.handle == handle_of(driver, claimed, kind="suspended")
    with refused(ExecutionNotFound):
        await driver.engine.suspensions.try_suspend(await driver.nowhere(), order())


# ---- repeats


async def suspend_again(driver: Driver, held: LeaseProof, asked: SuspendOrder) -> Any:
    return await driver.engine.suspensions.suspend(held, asked)


@pytest.mark.parametrize("name", ["idempotency_key", "op"])
async def test_a_repeat_under_one_key_has_the_same_outcome(driver: Driver, name: str) -> None:
    claimed = await driver.started()
    bindings = (Fresh("", "a"), Fresh("", "b"))
    asked = order(composite(all_of("a", "b")), waitpoints=bindings, **{name: "once*"})
    first = await suspend_again(driver, claimed.proof, asked)
    before = await driver.snapshot()
    for holder in (claimed.proof, fenced(claimed.proof)):
        again = await suspend_again(driver, holder, asked)
        assert again == first
    assert await driver.snapshot() == before


async def test_a_repeat_with_its_ids_needs_no_key(driver: Driver) -> None:
    """The answer was lost; the caller sends the very same call once more."""
    claimed = await driver.started()
    asked = order(suspension_id=stranger(), waitpoints=(Fresh(stranger(), "a"),))
    first = await suspend_again(driver, claimed.proof, asked)
    assert await suspend_again(driver, claimed.proof, asked) == first
    await driver.engine.operators.resume(claimed.execution_id)
    await driver.claim()
    assert await suspend_again(driver, claimed.proof, asked) == first


async def test_a_key_is_looked_up_before_any_other_check(driver: Driver) -> None:
    claimed = await driver.started()
    first = await suspend_again(driver, claimed.proof, order(idempotency_key="k"))
    await driver.engine.operators.resume(claimed.execution_id)
    done = await driver.claim()
    await driver.engine.outcomes.complete(done.proof)
    for holder in (claimed.proof, unfenced(claimed.execution_id), done.proof):
        assert await suspend_again(driver, holder, order(idempotency_key="k")) == first
    with refused(ExecutionNotActive):
        await suspend_again(driver, done.proof, order(idempotency_key="other"))


async def test_another_suspend_after_the_first_is_told_the_state(driver: Driver) -> None:
    paused = await pause(driver)
    with refused(ExecutionNotActive) as caught:
        await suspend_again(driver, paused.held, order())
    assert caught.value.details["lifecycle_phase"] == "suspended"


@pytest.mark.parametrize(
    ("fields", "kept_ms"),
    [
        ({}, 604_800_000),
        ({"timeout_ms": 5_000}, 65_000),
        ({"timeout_ms": 604_800_000}, 604_800_000),
        ({"timeout_ms": 0}, 60_000),
    ],
)
async def test_an_outcome_is_remembered_for_its_time(
    driver: Driver, fields: dict[str, Any], kept_ms: int
) -> None:
    claimed = await driver.started()
    asked = order(idempotency_key="k", **fields)
    first = await suspend_again(driver, claimed.proof, asked)
    driver.clock.advance(kept_ms - 1)
    assert await suspend_again(driver, claimed.proof, asked) == first
    driver.clock.advance(1)
    with refused(ExecutionNotActive):
        await suspend_again(driver, claimed.proof, asked)


async def test_an_instant_as_timeout_counts_from_the_step(driver: Driver) -> None:
    claimed = await driver.started()
    asked = order(idempotency_key="k", timeout_at=driver.clock() - 5_000)
    first = await suspend_again(driver, claimed.proof, asked)
    driver.clock.advance(59_999)
    assert await suspend_again(driver, claimed.proof, asked) == first
    driver.clock.advance(1)
    with refused(ExecutionNotActive):
        await suspend_again(driver, claimed.proof, asked)


async def test_a_key_may_be_used_again_once_it_is_forgotten(driver: Driver) -> None:
    paused = await pause(driver, idempotency_key="k", timeout_ms=1_000, timeout_behavior="escalate")
    driver.clock.advance(61_000)
    await driver.engine.operators.resume(paused.execution_id)
    claimed = await driver.claim()
    second = await pause_claimed(driver, claimed, idempotency_key="k", timeout_ms=1_000)
    assert second.details.suspension_id != paused.details.suspension_id
    again = await suspend_again(driver, claimed.proof, order(idempotency_key="k"))
    assert again.details == second.details


async def test_an_unreadable_outcome_counts_as_none(driver: Driver) -> None:
    claimed = await driver.started()
    broken = Plan(
        target=claimed.execution_id,
        rule="waitpoint",
        guard=Guard(frozenset({"active"})),
        documents={"skey/k": b'{"variant":"Suspended"'},
    )
    await driver.engine.deps.push(broken)
    outcome = await suspend_again(driver, claimed.proof, order(idempotency_key="k"))
    assert isinstance(outcome, Suspended)


async def test_keys_are_the_executions_own(driver: Driver) -> None:
    one = await pause(driver, idempotency_key="k")
    two = await pause(driver, idempotency_key="k")
    assert one.details.suspension_id != two.details.suspension_id


async def test_a_second_suspension_replaces_the_first(driver: Driver) -> None:
    paused = await pause(driver, reason_code="waiting_for_approval")
    await paused.signal()
    second = await pause_claimed(driver, await paused.resumed(), reason_code="manual_pause")
    kept = await second.suspension()
    assert (kept.suspension_id, kept.reason_code) == (second.details.suspension_id, "manual_pause")
    assert (kept.close_reason, kept.evaluation.satisfiers, kept.created_at) == (
        "",
        (),
        driver.clock(),
    )


async def test_a_pending_primary_that_does_not_exist_writes_nothing(driver: Driver) -> None:
    claimed = await driver.started()
    before = await documents(driver, claimed.execution_id)
    with pytest.raises(FlowFabricError):
        await suspend_again(
            driver, claimed.proof, order(waitpoints=(UsePending(stranger()),), idempotency_key="k")
        )
    assert await documents(driver, claimed.execution_id) == before
