"""Waitpoints handed out before a suspend, listed, closed, and their tokens read."""

from typing import Any

import pytest

from flowfabric.core.condition_checks import Fresh, UsePending
from flowfabric.core.conditions import (
    AnyOf,
    Condition,
    composite,
    signal_set,
    single,
)
from flowfabric.core.documents import waitpoint_name
from flowfabric.core.plan import Guard, Plan
from flowfabric.core.rules.signals import Accepted, Duplicate
from flowfabric.core.suspend_outcomes import Issued, Satisfied, Suspended
from flowfabric.core.suspensions import Waitpoint, waitpoint_in, write_document
from flowfabric.core.tokens import WaitpointToken, digest_of
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.engine.suspensions.keys import KEPT_PAST_GRACE_MS
from flowfabric.errors import (
    AlreadySatisfied,
    ExecutionNotActive,
    ExecutionNotFound,
    FenceRequired,
    FlowFabricError,
    HmacSecretNotInitialized,
    InvalidInput,
    InvalidWaitpointForExecution,
    LeaseExpired,
    LeaseRevoked,
    PartialFenceTriple,
    PendingWaitpointExpired,
    StaleLease,
    TargetNotSignalable,
    UsePendingWithExtrasUnsupported,
    WaitpointAlreadyExists,
    WaitpointClosed,
    WaitpointNotFound,
    WaitpointNotOpen,
    WaitpointNotPending,
    WaitpointNotTokenBound,
)
from flowfabric.operations.signals import OpenWaitpoint, Signals
from tests.conformance.driver import (
    EVERYWHERE,
    NOWHERE,
    RETRIES,
    TRANSIENT,
    Driver,
    fenced,
    refused,
    stranger,
    unfenced,
)
from tests.conformance.waiting import (
    GO,
    Paused,
    all_of,
    count,
    documents,
    drop_ring,
    on,
    order,
    pause,
    pause_claimed,
    pending,
    signal_to,
    signals,
    try_suspend,
)
from tests.moves import deliver_signal
from tests.proofs import proves

BUFFERED = "buffered_for_pending_waitpoint"


async def stored(driver: Driver, execution_id: str, waitpoint_id: str) -> Waitpoint:
    found = waitpoint_in(await documents(driver, execution_id), waitpoint_id)
    assert found is not None
    return found


async def send(driver: Driver, execution_id: str, at: Issued, name: str = "go") -> str:
    sent = await deliver_signal(driver.engine, signal_to(execution_id, at, name))
    assert isinstance(sent, Accepted)
    return sent.effect


async def use(
    driver: Driver, held: LeaseProof, at: Issued, condition: Condition = GO, **fields: Any
) -> Suspended | Satisfied:
    binding = UsePending(at.waitpoint_id)
    return await try_suspend(driver, held, condition, waitpoints=(binding,), **fields)


# ---- creating


async def test_a_pending_waitpoint_leaves_the_lease_alone(driver: Driver) -> None:
    claimed = await driver.started()
    made = await pending(driver, claimed.proof, 5_000)
    assert made.waitpoint_key == f"wpk:{made.waitpoint_id}"
    record = await driver.record(claimed.execution_id)
    assert (record.state, record.lease_id) == ("active", claimed.record.lease_id)
    assert record.pending_until == driver.clock() + 5_000
    kept = await stored(driver, claimed.execution_id, made.waitpoint_id)
    assert (kept.state, kept.expires_at, kept.created_at) == (
        "pending",
        driver.clock() + 5_000,
        driver.clock(),
    )
    assert (kept.attempt_index, kept.suspension_id) == (0, "")


async def test_the_timer_is_the_earliest_end_of_all_pending_ones(driver: Driver) -> None:
    held = await driver.reach("active")
    for length, earliest in ((5_000, 5_000), (9_000, 5_000), (2_000, 2_000)):
        await pending(driver, held, length)
        record = await driver.record(held.execution_id)
        assert record.pending_until == driver.clock() + earliest


async def test_two_waitpoints_may_have_one_key(driver: Driver) -> None:
    held = await driver.reach("active")
    first = await pending(driver, held, waitpoint_key="same")
    second = await pending(driver, held, waitpoint_key="same")
    assert first.waitpoint_id != second.waitpoint_id
    assert first.waitpoint_token != second.waitpoint_token


async def test_an_end_beyond_all_time_is_as_far_as_time_goes(driver: Driver) -> None:
    held = await driver.reach("active")
    made = await pending(driver, held, 2**63 - 1)
    kept = await stored(driver, held.execution_id, made.waitpoint_id)
    assert kept.expires_at == 2**63 - 1
    assert (await driver.sweep()).of("pending_wp_expiry") == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"expires_in_ms": 0},
        {"expires_in_ms": -1},
        {"expires_in_ms": 2**63},
        {"expires_in_ms": 1.5},
        {"waitpoint_id": "nonsense"},
        {"waitpoint_key": "x" * 1_025},
    ],
)
async def test_values_are_checked(driver: Driver, fields: dict[str, Any]) -> None:
    held = await driver.reach("active")
    with refused(InvalidInput):
        await pending(driver, held, **({"expires_in_ms": 1} | fields))


_REFUSALS: dict[str, type[FlowFabricError]] = {
    "unmarked": LeaseExpired,
    "lease_expired": LeaseExpired,
    "lease_revoked": LeaseRevoked,
}


@pytest.mark.parametrize("situation", [each for each in EVERYWHERE if each != "active"])
async def test_only_a_holder_makes_one(driver: Driver, situation: str) -> None:
    held = await driver.reach(situation)
    holder = held if held.lease_id else LeaseProof(held.execution_id, stranger(), 1, stranger())
    with refused(_REFUSALS.get(situation, ExecutionNotActive)):
        await pending(driver, holder)


async def test_who_may_make_one_is_asked_in_order(driver: Driver) -> None:
    held = await driver.reach("active")
    made = await pending(driver, held)
    cases: list[tuple[LeaseProof, type[FlowFabricError]]] = [
        (await driver.nowhere(), ExecutionNotFound),
        (unfenced(held.execution_id), FenceRequired),
        (fenced(held, lease_id=""), PartialFenceTriple),
        (fenced(held, lease_epoch=9), StaleLease),
    ]
    for holder, code in cases:
        with refused(code):
            await pending(driver, holder, waitpoint_id=made.waitpoint_id, attempt_index=5)
    with refused(StaleLease):
        await pending(driver, held, waitpoint_id=made.waitpoint_id, attempt_index=5)
    with refused(WaitpointAlreadyExists):
        await pending(driver, held, waitpoint_id=made.waitpoint_id, attempt_index=0)


async def test_an_open_waitpoint_keeps_its_id_and_a_closed_one_gives_it_away(
    driver: Driver,
) -> None:
    claimed = await driver.started()
    own = claimed.execution_id
    made = await pending(driver, claimed.proof, 5_000)
    await send(driver, own, made)
    with refused(WaitpointAlreadyExists):
        await pending(driver, claimed.proof, waitpoint_id=made.waitpoint_id)
    driver.clock.advance(5_000)
    again = await pending(driver, claimed.proof, 5_000, waitpoint_id=made.waitpoint_id)
    assert again.waitpoint_token != made.waitpoint_token
    kept = await stored(driver, own, made.waitpoint_id)
    assert (kept.expires_at, kept.signal_count) == (driver.clock() + 5_000, 0)
    outcome = await use(driver, claimed.proof, again)
    assert isinstance(outcome, Suspended), "signals of the closed one are not its own"


async def test_without_a_signing_key_none_is_made(driver: Driver) -> None:
    held = await driver.reach("active")
    await drop_ring(driver)
    with refused(HmacSecretNotInitialized):
        await pending(driver, held)


# ---- buffering


async def test_an_early_signal_is_kept_in_every_live_state(driver: Driver) -> None:
    claimed = await driver.started(policy=RETRIES)
    own, made = claimed.execution_id, await pending(driver, claimed.proof, 600_000)
    states = []

    async def expect() -> None:
        assert await send(driver, own, made, "early") == BUFFERED
        states.append((await driver.record(own)).state)

    await expect()
    await driver.engine.outcomes.delay(claimed.proof, for_ms=1_000)
    await expect()
    await driver.pass_time(1_000)
    await expect()
    await driver.engine.scheduling.block(own, "paused_by_operator")
    await expect()
    await driver.engine.scheduling.unblock(own)
    again = await driver.claim()
    await driver.engine.leases.revoke_lease(own)
    await expect()
    del again
    third = await driver.claim()
    await pause_claimed(driver, third)
    await expect()
    assert states == ["active", "delayed", "waiting", "blocked", "lost", "suspended"]
    kept = await stored(driver, own, made.waitpoint_id)
    assert (kept.signal_count, kept.matched_signal_count) == (6, 0)
    assert (await driver.record(own)).signal_count == 6
    entries = await driver.events("signal")
    assert {entry.details["effect"] for entry in entries} == {BUFFERED}


async def test_a_buffered_signal_is_told_apart_from_its_repeat(driver: Driver) -> None:
    claimed = await driver.started()
    made = await pending(driver, claimed.proof)
    request = signal_to(claimed.execution_id, made, idempotency_key="k")
    await deliver_signal(driver.engine, request)
    again = await deliver_signal(driver.engine, request)
    assert again == Duplicate(request.signal_id)
    assert (await driver.record(claimed.execution_id)).signal_count == 1


async def test_past_its_end_a_pending_waitpoint_takes_nothing(driver: Driver) -> None:
    claimed = await driver.started()
    own, made = claimed.execution_id, await pending(driver, claimed.proof, 5_000)
    driver.clock.advance(4_999)
    assert await send(driver, own, made, "x") == BUFFERED
    driver.clock.advance(1)
    for _ in range(2):
        with refused(PendingWaitpointExpired):
            await send(driver, own, made)
        await driver.sweep()
    assert (await stored(driver, own, made.waitpoint_id)).close_reason == "never_committed"


# ---- using one


@pytest.mark.parametrize(
    ("condition", "sent"),
    [
        (GO, ["no", "go"]),
        (single(), ["anything"]),
        (signal_set("a", "b"), ["b", "x", "a"]),
        (composite(AnyOf((count(2, "DistinctSignals", "k", name="y"), on("k", "z")))), ["y", "y"]),
    ],
)
async def test_signals_that_came_early_may_be_all_that_was_waited_for(
    driver: Driver, condition: Condition, sent: list[str]
) -> None:
    claimed = await driver.started()
    own, made = claimed.execution_id, await pending(driver, claimed.proof, waitpoint_key="k")
    for name in sent:
        await send(driver, own, made, name)
    before = await driver.record(own)
    outcome = await use(driver, claimed.proof, made, condition)
    assert isinstance(outcome, Satisfied)
    counted = [name for name in sent if name not in ("no", "x")]
    assert [one.signal_name for one in outcome.signals] == counted
    assert outcome.details.waitpoints == (made,)
    record = await driver.record(own)
    assert (record.state, record.lease_id) == ("active", before.lease_id)
    assert (record.pending_until, record.suspension_id) == (0, "")
    kept = await stored(driver, own, made.waitpoint_id)
    assert (kept.state, kept.close_reason) == ("closed", "resumed")
    assert (kept.satisfied_at, kept.closed_at) == (driver.clock(), driver.clock())
    assert kept.matched_signal_count == len(counted)
    assert "susp" not in await documents(driver, own)
    await driver.engine.outcomes.complete(claimed.proof)


async def test_a_strict_suspend_raises_when_nothing_has_to_wait(driver: Driver) -> None:
    claimed = await driver.started()
    made = await pending(driver, claimed.proof)
    await send(driver, claimed.execution_id, made)
    with refused(AlreadySatisfied):
        asked = order(waitpoints=(UsePending(made.waitpoint_id),))
        await driver.engine.suspensions.suspend(claimed.proof, asked)
    assert (await driver.record(claimed.execution_id)).state == "active"


@pytest.mark.parametrize("name", ["idempotency_key", "op", "suspension_id"])
async def test_a_repeat_is_told_that_nothing_had_to_wait(driver: Driver, name: str) -> None:
    claimed = await driver.started()
    made = await pending(driver, claimed.proof)
    await send(driver, claimed.execution_id, made)
    fields: dict[str, Any] = {name: stranger()}
    first = await use(driver, claimed.proof, made, **fields)
    again = await use(driver, claimed.proof, made, **fields)
    assert isinstance(first, Satisfied)
    assert again == first
    with refused(WaitpointNotPending):
        await use(driver, claimed.proof, made)


async def test_what_came_early_counts_when_it_is_not_enough(driver: Driver) -> None:
    claimed = await driver.started()
    own, made = claimed.execution_id, await pending(driver, claimed.proof, 5_000)
    for name in ("x", "a"):
        driver.clock.advance(1)
        await send(driver, own, made, name)
    accepted_at = driver.clock()
    driver.clock.advance(1)
    outcome = await use(driver, claimed.proof, made, signal_set("a", "b"), timeout_ms=9_000)
    assert isinstance(outcome, Suspended)
    assert outcome.details.waitpoints == (made,)
    paused = Paused(driver, claimed, outcome.details)
    kept = await stored(driver, own, made.waitpoint_id)
    assert (kept.state, kept.activated_at, kept.matched_signal_count) == (
        "active",
        driver.clock(),
        1,
    )
    assert kept.suspension_id == outcome.details.suspension_id
    assert kept.last_signal_at == accepted_at
    effects = [(one.observed_effect, one.matched) for one in await signals(driver, own)]
    assert effects == [("no_op", False), ("appended_to_waitpoint", True)]
    assert [one.accepted_at for one in await signals(driver, own)] == [
        accepted_at - 1,
        accepted_at,
    ]
    record = await driver.record(own)
    assert (record.pending_until, record.wake_at) == (0, driver.clock() + 9_000)
    assert await paused.signal("b") == "resume_condition_satisfied"
    shown = (await driver.engine.signals.resume_signals(own, 0)).signals
    assert [one.signal_name for one in shown] == ["a", "b"]


async def test_an_activated_waitpoint_outlives_its_old_end(driver: Driver) -> None:
    claimed = await driver.started()
    made = await pending(driver, claimed.proof, 5_000)
    await use(driver, claimed.proof, made)
    result = await driver.pass_time(60_000)
    assert result.of("pending_wp_expiry") == 0
    assert await send(driver, claimed.execution_id, made) == "resume_condition_satisfied"


async def test_the_timer_goes_on_with_the_ones_that_are_left(driver: Driver) -> None:
    claimed = await driver.started()
    first = await pending(driver, claimed.proof, 1_000)
    await pending(driver, claimed.proof, 7_000)
    await use(driver, claimed.proof, first)
    record = await driver.record(claimed.execution_id)
    assert record.pending_until == driver.clock() + 7_000


async def test_a_used_or_closed_waitpoint_is_not_pending(driver: Driver) -> None:
    claimed = await driver.started()
    own, made = claimed.execution_id, await pending(driver, claimed.proof)
    await driver.engine.waitpoints.close_waitpoint(own, made.waitpoint_id)
    with refused(WaitpointNotPending):
        await use(driver, claimed.proof, made)
    paused = await pause_claimed(driver, claimed)
    await paused.signal()
    again = await paused.resumed()
    with refused(WaitpointNotPending):
        await use(driver, again.proof, paused.at())


async def test_what_cannot_be_used_is_told_in_order(driver: Driver) -> None:
    claimed = await driver.started(policy=RETRIES)
    own, made = claimed.execution_id, await pending(driver, claimed.proof, 50_000)
    with refused(WaitpointNotFound):
        other = Issued(stranger(), "", made.waitpoint_token)
        await use(driver, claimed.proof, other)
    with refused(StaleLease):
        await use(driver, fenced(claimed.proof, lease_epoch=7), made)
    await driver.engine.outcomes.fail(claimed.proof, TRANSIENT)
    await driver.pass_time(500)
    second = await driver.claim()
    with refused(InvalidWaitpointForExecution):
        await use(driver, second.proof, made)
    fresh = await pending(driver, second.proof, 5_000)
    driver.clock.advance(5_000)
    for _ in range(2):
        with refused(PendingWaitpointExpired):
            await use(driver, second.proof, fresh)
        await driver.sweep()
    assert (await driver.record(own)).state == "active"


async def test_a_waitpoint_without_a_token_cannot_be_used(driver: Driver) -> None:
    claimed = await driver.started()
    own, bare = claimed.execution_id, stranger()
    waitpoint = Waitpoint(
        waitpoint_id=bare, waitpoint_key="k", attempt_index=0, state="pending", expires_in=5_000
    )
    await driver.engine.deps.push(
        Plan(
            target=own,
            rule="waitpoint",
            guard=Guard(frozenset({"active"})),
            documents={waitpoint_name(bare): write_document(waitpoint)},
        )
    )
    with refused(WaitpointNotTokenBound):
        asked = order(waitpoints=(UsePending(bare),))
        await driver.engine.suspensions.suspend(claimed.proof, asked)
    page = await driver.engine.waitpoints.list_pending_waitpoints(own)
    assert page.items == []


async def test_a_pending_waitpoint_stands_alone(driver: Driver) -> None:
    claimed = await driver.started()
    made = await pending(driver, claimed.proof, waitpoint_key="a")
    bindings = (UsePending(made.waitpoint_id), Fresh("", "b"))
    with refused(UsePendingWithExtrasUnsupported):
        await try_suspend(driver, claimed.proof, composite(all_of("a", "b")), waitpoints=bindings)
    with refused(StaleLease):
        stale = fenced(claimed.proof, lease_id=stranger())
        await try_suspend(driver, stale, composite(all_of("a", "b")), waitpoints=bindings)


async def test_the_key_of_a_pending_waitpoint_must_be_the_conditions(driver: Driver) -> None:
    claimed = await driver.started()
    made = await pending(driver, claimed.proof, waitpoint_key="a")
    with refused(InvalidInput, "referenced_waitpoint_key_missing_binding: b"):
        await use(driver, claimed.proof, made, single("b"))
    with refused(InvalidInput, "referenced_waitpoint_key_missing_binding: b"):
        await use(driver, claimed.proof, made, composite(all_of("a", "b")))
    assert isinstance(await use(driver, claimed.proof, made, single("a")), Suspended)


# ---- expiry by the timer


async def test_the_timer_closes_what_nobody_used(driver: Driver) -> None:
    claimed = await driver.started()
    own = claimed.execution_id
    early = await pending(driver, claimed.proof, 1_000)
    late = await pending(driver, claimed.proof, 8_000)
    result = await driver.pass_time(1_000)
    assert result.of("pending_wp_expiry") == 1
    gone, left = [await stored(driver, own, one.waitpoint_id) for one in (early, late)]
    assert (gone.state, gone.close_reason, gone.closed_at) == (
        "closed",
        "never_committed",
        driver.clock(),
    )
    assert left.state == "pending"
    record = await driver.record(own)
    assert (record.state, record.pending_until) == ("active", driver.clock() + 7_000)
    assert (await driver.pass_time(7_000)).of("pending_wp_expiry") == 1
    assert (await driver.record(own)).pending_until == 0
    assert (await driver.sweep()).of("pending_wp_expiry") == 0


async def test_the_timer_reaches_a_waitpoint_in_every_live_state(driver: Driver) -> None:
    claimed = await driver.started()
    made = await pending(driver, claimed.proof, 1_000)
    paused = await pause_claimed(driver, claimed)
    assert (await driver.pass_time(1_000)).of("pending_wp_expiry") == 1
    kept = await stored(driver, paused.execution_id, made.waitpoint_id)
    assert kept.close_reason == "never_committed"
    assert await paused.state() == "suspended"


# ---- closing


async def test_a_holder_closes_what_it_does_not_need(driver: Driver) -> None:
    claimed = await driver.started()
    own, made = claimed.execution_id, await pending(driver, claimed.proof)
    close = driver.engine.waitpoints.close_waitpoint
    with refused(StaleLease):
        await close(own, made.waitpoint_id, proof=fenced(claimed.proof, lease_epoch=3))
    assert await close(own, made.waitpoint_id, proof=claimed.proof) == "closed"
    assert await close(own, made.waitpoint_id, proof=claimed.proof) == "already_closed"
    kept = await stored(driver, own, made.waitpoint_id)
    assert (kept.state, kept.close_reason, kept.closed_at) == (
        "closed",
        "proactive_close",
        driver.clock(),
    )
    assert (await driver.record(own)).pending_until == 0
    with refused(TargetNotSignalable):
        await send(driver, own, made)


async def test_an_operator_closes_one_of_several_and_the_wait_goes_on(driver: Driver) -> None:
    bindings = (Fresh("", "a"), Fresh("", "b"))
    tree = composite(AnyOf((on("a"), on("b"))))
    paused = await pause(driver, tree, waitpoints=bindings)
    own = paused.execution_id
    close = driver.engine.waitpoints.close_waitpoint
    assert await close(own, paused.at("a").waitpoint_id, "noisy") == "closed"
    with refused(WaitpointClosed):
        await paused.send(key="a")
    assert (await stored(driver, own, paused.at("a").waitpoint_id)).close_reason == "noisy"
    assert await paused.signal(key="b") == "resume_condition_satisfied"
    assert await close(own, paused.at("b").waitpoint_id) == "already_closed"


async def test_closing_leaves_the_timer_to_the_others(driver: Driver) -> None:
    held = await driver.reach("active")
    first = await pending(driver, held, 1_000)
    await pending(driver, held, 3_000)
    await driver.engine.waitpoints.close_waitpoint(held.execution_id, first.waitpoint_id)
    assert (await driver.record(held.execution_id)).pending_until == driver.clock() + 3_000


async def test_what_there_is_not_cannot_be_closed(driver: Driver) -> None:
    paused, other = await pause(driver), await pause(driver)
    close = driver.engine.waitpoints.close_waitpoint
    with refused(ExecutionNotFound):
        await close(NOWHERE, stranger())
    with refused(WaitpointNotFound):
        await close(paused.execution_id, stranger())
    with refused(WaitpointNotFound):
        await close(paused.execution_id, other.at().waitpoint_id)
    with refused(InvalidInput):
        await close(paused.execution_id, "nonsense")


async def test_a_waitpoint_in_no_known_state_is_not_closed(driver: Driver) -> None:
    paused = await pause(driver)
    own, name = paused.at().waitpoint_id, waitpoint_name(paused.at().waitpoint_id)
    odd = Waitpoint(waitpoint_id=own, waitpoint_key="k", attempt_index=0, state="odd")
    await driver.engine.deps.push(
        Plan(
            target=paused.execution_id,
            rule="waitpoint",
            guard=Guard(frozenset({"suspended"})),
            documents={name: write_document(odd)},
        )
    )
    with refused(WaitpointNotOpen):
        await driver.engine.waitpoints.close_waitpoint(paused.execution_id, own)


# ---- listing


async def listed(driver: Driver, execution_id: str, **fields: Any) -> list[OpenWaitpoint]:
    page = await driver.engine.waitpoints.list_pending_waitpoints(execution_id, **fields)
    return page.items


@proves(Signals.list_pending_waitpoints)
async def test_open_waitpoints_are_listed_without_their_tokens(driver: Driver) -> None:
    claimed = await driver.started()
    early = await pending(driver, claimed.proof, 5_000)
    driver.clock.advance(10)
    paused = await pause_claimed(driver, claimed, signal_set("a", "b"), timeout_ms=800)
    shown = {one.waitpoint_id: one for one in await listed(driver, claimed.execution_id)}
    assert set(shown) == {early.waitpoint_id, paused.at().waitpoint_id}
    active, waiting = shown[paused.at().waitpoint_id], shown[early.waitpoint_id]
    token = paused.at().waitpoint_token
    assert active == OpenWaitpoint(
        execution_id=claimed.execution_id,
        waitpoint_id=paused.at().waitpoint_id,
        waitpoint_key=paused.at().waitpoint_key,
        state="active",
        required_signal_names=("a", "b"),
        created_at=driver.clock(),
        activated_at=driver.clock(),
        expires_at=driver.clock() + 800,
        token_kid="k1",
        token_fingerprint=digest_of(token).fingerprint,
    )
    assert (waiting.state, waiting.required_signal_names) == ("pending", ())
    assert (waiting.activated_at, waiting.expires_at) == (0, driver.clock() - 10 + 5_000)
    assert token.digest not in repr(shown)


@pytest.mark.parametrize(
    ("condition", "names"),
    [
        (single(), ()),
        (Condition(condition_type="operator_only"), ("__operator_only__",)),
        (Condition(condition_type="timeout_only"), ("__timeout_only__",)),
        (composite(AnyOf((on("k", "yes"), on("k", "no")))), ("yes", "no")),
    ],
)
async def test_the_names_that_are_waited_for_are_shown(
    driver: Driver, condition: Condition, names: tuple[str, ...]
) -> None:
    paused = await pause(driver, condition, timeout_ms=1_000)
    (shown,) = await listed(driver, paused.execution_id)
    assert shown.required_signal_names == names


async def test_a_page_is_filled_and_goes_on_behind_an_id(driver: Driver) -> None:
    claimed = await driver.started()
    made = [await pending(driver, claimed.proof) for _ in range(7)]
    gone = made.pop()
    own = claimed.execution_id
    await driver.engine.waitpoints.close_waitpoint(own, gone.waitpoint_id)
    ids = sorted(one.waitpoint_id for one in made)
    walked: list[str] = []
    after = ""
    while True:
        page = await driver.engine.waitpoints.list_pending_waitpoints(own, after, 2)
        walked += [one.waitpoint_id for one in page.items]
        after = page.next_cursor
        if not after:
            break
        assert len(page.items) == 2
    assert walked == ids


async def test_nothing_open_is_an_empty_page_and_nobody_an_error(driver: Driver) -> None:
    assert await listed(driver, await driver.submit()) == []
    paused = await pause(driver)
    await paused.signal()
    assert await listed(driver, paused.execution_id) == []
    with refused(ExecutionNotFound):
        await listed(driver, NOWHERE)
    for fields in ({"limit": 0}, {"limit": 1_001}, {"after": "nonsense"}):
        with refused(InvalidInput):
            await listed(driver, paused.execution_id, **fields)


# ---- tokens


@proves(Signals.waitpoint_token)
async def test_the_token_of_an_open_waitpoint_is_read_and_audited(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "flowfabric.audit")
    paused, other = await pause(driver), await pause(driver)
    read = driver.engine.waitpoints.read_waitpoint_token
    own, at = paused.execution_id, paused.at()
    assert await read(own, at.waitpoint_id) == at.waitpoint_token
    (entry,) = caplog.records
    assert entry.getMessage().startswith("waitpoint_token_read ")
    assert own in caplog.text
    assert at.waitpoint_id in caplog.text
    assert at.waitpoint_token.digest not in caplog.text
    assert await read(own, other.at().waitpoint_id) is None
    assert await read(own, stranger()) is None
    assert await read(NOWHERE, at.waitpoint_id) is None
    await paused.signal()
    assert await read(own, at.waitpoint_id) is None
    assert len(caplog.records) == 1


# ---- list of suspended executions


async def test_suspended_executions_are_listed_with_their_reason_codes(driver: Driver) -> None:
    codes = ["manual_pause", "step_boundary", "waiting_for_approval"]
    lane = {"lane": "one"}
    found = []
    for i, code in enumerate(codes):
        claimed = await driver.started(**lane)
        await pause_claimed(driver, claimed, reason_code=code, timeout_ms=1_000 * (3 - i))
        found.append(claimed.execution_id)
    endless = await driver.started(**lane)
    await pause_claimed(driver, endless)
    partition = int(endless.execution_id[4:].partition("}")[0])
    page = await driver.engine.reads.list_suspended(partition, limit=3)
    assert [one.execution_id for one in page.items] == found[::-1]
    assert [one.reason for one in page.items] == codes[::-1]
    assert page.items[0].timeout_at_ms == driver.clock() + 1_000
    rest = await driver.engine.reads.list_suspended(partition, page.next_cursor, 3)
    assert [(one.execution_id, one.timeout_at_ms) for one in rest.items] == [
        (endless.execution_id, 9_999_999_999_999)
    ]


# ---- what a store keeps of tokens


async def stored_bytes(driver: Driver, execution_id: str) -> bytes:
    return b"".join(one.body for one in (await documents(driver, execution_id)).values())


def is_nowhere(token: WaitpointToken, stored: bytes) -> bool:
    """Neither as its text nor as the bytes that the text stands for."""
    return token.digest.encode() not in stored and bytes.fromhex(token.digest) not in stored


async def test_a_store_keeps_no_token_and_repeats_tell_it_again(driver: Driver) -> None:
    claimed = await driver.started()
    own, early = claimed.execution_id, await pending(driver, claimed.proof)
    assert is_nowhere(early.waitpoint_token, await stored_bytes(driver, own))
    bindings = (Fresh("", "a"), Fresh("", "b"))
    asked: dict[str, Any] = {"waitpoints": bindings, "idempotency_key": "once"}
    paused = await try_suspend(driver, claimed.proof, composite(all_of("a", "b")), **asked)
    tokens = [one.waitpoint_token for one in paused.details.waitpoints]
    assert len(tokens) == 2
    stored = await stored_bytes(driver, own)
    assert all(is_nowhere(one, stored) for one in (*tokens, early.waitpoint_token))
    again = await try_suspend(driver, claimed.proof, composite(all_of("a", "b")), **asked)
    assert again == paused
    read = driver.engine.waitpoints.read_waitpoint_token
    assert await read(own, paused.details.waitpoints[0].waitpoint_id) == tokens[0]


async def test_a_token_is_told_after_a_rotation_until_its_key_is_dropped(driver: Driver) -> None:
    paused = await pause(driver)
    token, at = paused.at().waitpoint_token, paused.at().waitpoint_id
    keys, read = driver.engine.keys, driver.engine.waitpoints.read_waitpoint_token
    await keys.rotate_waitpoint_hmac_secret("k2", "ab" * 32, 1_000)
    assert await read(paused.execution_id, at) == token
    driver.clock.advance(1_000 + KEPT_PAST_GRACE_MS + 1)
    assert await keys.drop_stale() == 1
    assert await read(paused.execution_id, at) is None


async def test_a_pending_waitpoint_that_satisfies_at_once_tells_its_token(driver: Driver) -> None:
    claimed = await driver.started()
    made = await pending(driver, claimed.proof)
    await deliver_signal(driver.engine, signal_to(claimed.execution_id, made))
    use_it: dict[str, Any] = {
        "waitpoints": (UsePending(made.waitpoint_id),),
        "idempotency_key": "once",
    }
    for _ in range(2):
        done = await try_suspend(driver, claimed.proof, **use_it)
        assert isinstance(done, Satisfied)
        assert done.details.waitpoints == (made,)
    assert is_nowhere(made.waitpoint_token, await stored_bytes(driver, claimed.execution_id))
