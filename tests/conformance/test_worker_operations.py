"""What a worker asks for by its declared operations, on every store."""

from typing import Any

import msgspec
import pytest

from flowfabric.core.condition_checks import UsePending
from flowfabric.core.conditions import signal_set
from flowfabric.core.journal import JournalEntry
from flowfabric.core.suspend_outcomes import Issued
from flowfabric.errors import (
    FenceRequired,
    InvalidInput,
    Nondeterminism,
    StaleLease,
    StaleOwnerCannotAppend,
)
from flowfabric.operations.attempts import (
    Appended,
    HeldAttempts,
    Kept,
    NewEntry,
    NewFrame,
    NewWaitpoint,
    Output,
    Satisfied,
    Suspend,
    Suspended,
    UsageReport,
)
from flowfabric.operations.budgets import HardBreach, Ok
from flowfabric.operations.workers import (
    Cancel,
    ClaimOrder,
    ClaimTerms,
    Complete,
    Delay,
    Ending,
    Fail,
    Finished,
    GrantClaim,
    NewGrant,
    Park,
    Registration,
    Renewal,
    Renewed,
    Resumption,
    WaitChildren,
    Workers,
)
from tests.conformance.driver import RETRIES, Driver, refused, stranger
from tests.conformance.limiting import new_budget
from tests.conformance.waiting import signal_to
from tests.conformance.worker_calls import WORKER, calls_on, claimed, fence, finish
from tests.moves import deliver_signal
from tests.proofs import proves

POLICY = {"timeout_policy": {"attempt_timeout_ms": 9_000}}


# ---- claims


@proves(Workers.claim)
async def test_a_claim_has_all_that_its_holder_needs(driver: Driver) -> None:
    calls = calls_on(driver.engine)
    assert await calls.claim(ClaimOrder(**WORKER)) is None
    own = await driver.submit(
        kind="greet", input=b"hi", payload_encoding="json", tags={"a.b": "c"}, policy=POLICY
    )
    driver.clock.advance(5)
    await driver.submit()
    reply = await calls.claim(ClaimOrder(**WORKER, lease_ms=7_000))
    assert reply is not None
    assert (reply.more, reply.now) == (True, driver.clock())
    (claim,) = reply.items
    record = await driver.record(own)
    assert fence(claim) == {
        "execution_id": own,
        "lease_id": record.lease_id,
        "lease_epoch": 1,
        "attempt_id": record.attempt_id,
    }
    assert (claim.execution_kind, claim.input, claim.payload_encoding) == ("greet", b"hi", "json")
    assert (claim.namespace, claim.lane_id, claim.tags) == ("default", "default", {"a.b": "c"})
    assert (claim.attempt_index, claim.attempt_type) == (0, "initial")
    assert (claim.claimed_at, claim.lease_expires_at) == (driver.clock(), driver.clock() + 7_000)
    assert claim.created_at == driver.clock() - 5
    assert b"attempt_timeout_ms" in bytes(claim.policy or b"")
    assert record.lease_id not in repr(claim)


@pytest.mark.parametrize(
    ("names", "size", "is_carried"),
    [
        (("go",), 0, True),
        (("go",), 16 * 1024, True),
        (("go",), 16 * 1024 + 1, False),
        (("yes", "no"), 1, False),
    ],
)
async def test_a_claim_tells_what_resumed_its_attempt(
    driver: Driver, names: tuple[str, ...], size: int, is_carried: bool
) -> None:
    """One small signal comes along; others are asked for."""
    calls = calls_on(driver.engine)
    await driver.submit()
    condition = signal_set(*names, mode="all" if len(names) > 1 else "")
    order = Suspend(**fence(await claimed(driver.engine)), resume_condition=condition, op="s")
    paused = await calls.suspend(order)
    assert isinstance(paused, Suspended)
    for name in names:
        sent = signal_to(order.execution_id, paused.waitpoints[0], name, payload=b"x" * size)
        await deliver_signal(driver.engine, sent)
    again = await claimed(driver.engine)
    assert (again.attempt_type, again.attempt_index) == ("resumed", 0)
    shown = await driver.engine.signals.resume_signals(order.execution_id, 0)
    assert [len(one.payload or b"") for one in shown.signals] == [size] * len(names)
    carried = shown.signals if is_carried else None
    assert again.resumed_by == Resumption(paused.suspension_id, "signal", carried)


@pytest.mark.parametrize("lease_ms", [999, 3_600_001])
async def test_a_lease_is_neither_too_short_nor_too_long(driver: Driver, lease_ms: int) -> None:
    calls = calls_on(driver.engine)
    await driver.submit()
    with refused(InvalidInput):
        await calls.claim(ClaimOrder(**WORKER, lease_ms=lease_ms))
    claim = await claimed(driver.engine)
    with refused(InvalidInput):
        await calls.renew("pool-1", lease_ms, [Renewal(**fence(claim))])
    with refused(InvalidInput):
        await calls.finish([finish(claim)], ClaimTerms(**WORKER, lease_ms=lease_ms))
    assert (await driver.record(claim.execution_id)).state == "active"


@proves(Workers.claim_grant, Workers.claim_granted)
async def test_a_grant_is_used_in_place_of_a_claim(driver: Driver) -> None:
    calls = calls_on(driver.engine)
    new = NewGrant(lane_id="default", worker_instance_id="pool-1", grant_ttl_ms=2_000)
    assert await calls.claim_grant("pool", new) is None
    own = await driver.submit()
    grant = await calls.claim_grant("pool", new)
    assert grant is not None
    assert (grant.execution_id, grant.lane_id, grant.kind) == (own, "default", "claim")
    assert grant.expires_at_ms == driver.clock() + 2_000
    used = GrantClaim(
        execution_id=own,
        grant_key=grant.grant_key,
        worker_id="pool",
        worker_instance_id="pool-1",
        lease_ms=4_000,
    )
    assert grant.grant_key not in repr(used)
    claim = await calls.claim_granted(used)
    assert (claim.execution_id, claim.lease_expires_at) == (own, driver.clock() + 4_000)


# ---- leases


@proves(Workers.renew)
async def test_leases_are_renewed_together_each_with_its_answer(driver: Driver) -> None:
    calls = calls_on(driver.engine)
    await driver.submit()
    first = await claimed(driver.engine)
    await driver.submit()
    second = await claimed(driver.engine)
    driver.clock.advance(1_000)
    reply = await calls.renew(
        "pool-1",
        60_000,
        [
            Renewal(**fence(first), progress_pct=50, progress_message="half"),
            Renewal(**(fence(second) | {"lease_epoch": 7})),
            Renewal(**fence(second), progress_pct=101),
        ],
    )
    kept, stale, wrong = reply.items
    assert kept == Renewed(driver.clock() + 60_000)
    assert isinstance(stale, StaleLease)
    assert isinstance(wrong, InvalidInput)
    assert (reply.now, reply.config_revision) == (driver.clock(), 0)
    record = await driver.record(first.execution_id)
    assert (record.progress_pct, record.progress_message) == (50, "half")
    assert (await driver.record(second.execution_id)).lease_until == second.lease_expires_at


async def test_a_renewal_is_a_heartbeat(driver: Driver) -> None:
    calls = calls_on(driver.engine)
    await calls.register_worker(Registration(**WORKER, ttl_ms=10_000))
    driver.clock.advance(9_000)
    assert (await calls.renew("pool-1", 60_000, [])).config_revision > 0
    (shown,) = (await driver.engine.workers.list_workers()).items
    assert shown.last_heartbeat_ms == driver.clock()


# ---- ends


@proves(Workers.finish)
async def test_attempts_end_in_every_way_and_the_next_is_claimed(driver: Driver) -> None:
    calls = calls_on(driver.engine)
    for _ in range(7):
        await driver.submit(policy=RETRIES)
    reply = await calls.claim(ClaimOrder(**WORKER, n=7))
    assert reply is not None
    following = await driver.submit()
    now = driver.clock()
    outcomes: list[Ending] = [
        Delay(for_ms=60_000),
        Complete(b"done", "raw"),
        Cancel("enough"),
        Fail("flaky", "transient"),
        WaitChildren(),
        Park("step 'pay': recorded pay(1), now pay(2)"),
        Complete(),
    ]
    items = [finish(*pair) for pair in zip(reply.items, outcomes, strict=True)]
    items[6] = finish(reply.items[6], lease_epoch=9)
    done = await calls.finish(items, _terms())
    *ended, stale = done.items
    assert ended == [
        Finished(state="delayed", delay_until=now + 60_000),
        Finished(state="completed"),
        Finished(state="cancelled"),
        Finished(state="delayed", delay_until=now + 500, next_attempt_index=1),
        Finished(state="waiting"),
        Finished(state="suspended"),
    ]
    assert isinstance(stale, StaleLease)
    assert [one.execution_id for one in done.claimed] in ([following], [items[4].execution_id])
    assert (done.more, done.now) == (True, now)
    assert await driver.result(items[1].execution_id) == b"done"


def _terms() -> ClaimTerms:
    return ClaimTerms(**WORKER)


@pytest.mark.parametrize(
    "outcome", [Complete(), Delay(for_ms=0), Fail("x", "y"), Cancel("x"), Park("x")]
)
async def test_a_repeat_is_answered_as_the_first_call_was(driver: Driver, outcome: Any) -> None:
    calls = calls_on(driver.engine)
    await driver.submit(policy=RETRIES)
    item = finish(await claimed(driver.engine), outcome)
    (first,) = (await calls.finish([item])).items
    assert isinstance(first, Finished)
    (again,) = (await calls.finish([item])).items
    assert again == msgspec.structs.replace(first, replayed=True)


async def test_a_server_that_drains_finishes_and_claims_nothing(driver: Driver) -> None:
    await driver.submit()
    claim = await claimed(driver.engine)
    await driver.submit()
    finish_batch: Any = driver.engine.finishing.finish_batch
    done = await finish_batch([finish(claim)], _terms(), may_claim=False)
    assert (done.items, done.claimed) == ([Finished(state="completed")], [])
    assert done.more is None


async def test_what_cannot_be_ordered_ends_nothing(driver: Driver) -> None:
    await driver.submit()
    claim = await claimed(driver.engine)
    order = ClaimTerms(**(WORKER | {"lanes": ()}))
    for outcome in (Complete(), Delay(for_ms=0)):
        with refused(InvalidInput):
            await calls_on(driver.engine).finish([finish(claim, outcome)], order)
    assert (await driver.record(claim.execution_id)).state == "active"


# ---- pauses


@proves(HeldAttempts.suspend)
async def test_a_suspend_gives_the_lease_up_and_a_repeat_has_the_same_tokens(
    driver: Driver,
) -> None:
    calls = calls_on(driver.engine)
    await driver.submit()
    claim = await claimed(driver.engine)
    order = Suspend(**fence(claim), resume_condition=signal_set("go"), op="wait")
    first = await calls.suspend(order)
    assert isinstance(first, Suspended)
    assert len(first.waitpoints) == 1
    assert (await driver.record(claim.execution_id)).state == "suspended"
    assert await calls.suspend(order) == first


@proves(HeldAttempts.create_waitpoint)
async def test_a_condition_met_before_keeps_the_lease(driver: Driver) -> None:
    calls = calls_on(driver.engine)
    await driver.submit()
    claim = await claimed(driver.engine)
    new = NewWaitpoint(**fence(claim), expires_in_ms=60_000, waitpoint_key="door")
    made = await calls.create_waitpoint(new)
    assert isinstance(made, Issued)
    await deliver_signal(driver.engine, signal_to(claim.execution_id, made, "go"))
    order = Suspend(
        **fence(claim),
        resume_condition=signal_set("go"),
        waitpoints=(UsePending(made.waitpoint_id),),
        op="wait",
    )
    done = await calls.suspend(order)
    assert isinstance(done, Satisfied)
    assert [one.signal_name for one in done.signals] == ["go"]
    assert (await driver.record(claim.execution_id)).state == "active"


async def test_a_waitpoint_is_answered_again_by_its_id(driver: Driver) -> None:
    calls = calls_on(driver.engine)
    await driver.submit()
    claim = await claimed(driver.engine)
    own = stranger()
    new = NewWaitpoint(**fence(claim), expires_in_ms=1_000, waitpoint_key="door", waitpoint_id=own)
    made = await calls.create_waitpoint(new)
    assert made.waitpoint_id == own
    assert await calls.create_waitpoint(new) == made
    driver.clock.advance(1_000)
    await driver.sweep()
    # A closed one, too: the caller learns its token, and nothing is opened again.
    assert await calls.create_waitpoint(new) == made
    assert (await driver.engine.waitpoints.list_pending_waitpoints(claim.execution_id)).items == []
    with refused(StaleLease):
        await calls.create_waitpoint(msgspec.structs.replace(new, lease_epoch=new.lease_epoch + 1))


async def test_what_needs_a_lease_is_refused_without_one(driver: Driver) -> None:
    calls = calls_on(driver.engine)
    own: dict[str, Any] = {"execution_id": (await driver.started()).execution_id}
    with refused(FenceRequired):
        await calls.suspend(Suspend(**own, resume_condition=signal_set("go"), op="wait"))
    with refused(FenceRequired):
        await calls.create_waitpoint(NewWaitpoint(**own, expires_in_ms=60_000))
    step = NewEntry(**own, entry=JournalEntry("s", 1, "", b""))
    (refusal,) = await calls.append_journal([step])
    assert isinstance(refusal, FenceRequired)


# ---- output, steps, usage


@proves(HeldAttempts.append_frames)
async def test_frames_are_appended_each_output_with_its_answer(driver: Driver) -> None:
    calls = calls_on(driver.engine)
    await driver.submit()
    claim = await claimed(driver.engine)
    frame = NewFrame(frame_type="stdout", payload=b"x", seq=1)
    output = Output(**fence(claim), attempt_index=0, frames=[frame, frame])
    assert output.is_numbered
    (first,) = await calls.append_frames([output])
    assert isinstance(first, Appended)
    assert (len(set(first.ids)), first.frame_count) == (1, 1)
    wrong = Output(**(fence(claim) | {"lease_id": stranger()}), attempt_index=0, frames=[frame])
    again, stale = await calls.append_frames([output, wrong])
    assert again == first
    assert isinstance(stale, StaleOwnerCannotAppend | StaleLease)


@proves(HeldAttempts.append_journal)
async def test_a_step_is_recorded_once(driver: Driver) -> None:
    calls = calls_on(driver.engine)
    await driver.submit()
    claim = await claimed(driver.engine)
    own, entry = fence(claim), JournalEntry("step", 1, "ab", b"out")
    step = NewEntry(**own, entry=entry)
    assert await calls.append_journal([step]) == [Kept(True)]
    other = NewEntry(**own, entry=JournalEntry("step", 1, "cd", b"new"))
    wrong = NewEntry(**(own | {"lease_id": stranger()}), entry=entry)
    repeated, different, stale = await calls.append_journal([step, other, wrong])
    assert repeated == Kept(False, b"out")
    assert isinstance(different, Nondeterminism)
    assert isinstance(stale, StaleLease)


@proves(HeldAttempts.report_usages)
async def test_each_report_of_usage_has_its_own_outcome(driver: Driver) -> None:
    calls = calls_on(driver.engine)
    budget_id = await new_budget(driver.engine, {"t": 10})
    await driver.submit()
    held = fence(await claimed(driver.engine))
    reports = [
        UsageReport(**held, budget_id=budget_id, dimensions={"t": amount}) for amount in (4, 100)
    ]
    unknown = UsageReport(**held, budget_id=stranger(), dimensions={"t": 1})
    fits, breaks, nobody = await calls.report_usages([*reports, unknown])
    assert fits == Ok()
    assert isinstance(breaks, HardBreach)
    assert type(nobody).__name__ == "BudgetNotFound"
