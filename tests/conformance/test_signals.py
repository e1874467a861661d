"""Signals: who is let in, what they do, what repeats and late ones are told."""

import hmac
from typing import Any

import pytest

from flowfabric.core.condition_checks import Fresh
from flowfabric.core.conditions import (
    AllOf,
    AnyOf,
    Condition,
    Node,
    composite,
    signal_set,
    single,
)
from flowfabric.core.members import skip_plan
from flowfabric.core.rules.signals import Accepted, Duplicate
from flowfabric.core.suspensions import ResumePolicy, is_open, waitpoint_in
from flowfabric.core.tokens import WaitpointToken
from flowfabric.errors import (
    ExecutionNotFound,
    FlowFabricError,
    InvalidInput,
    InvalidToken,
    MissingToken,
    PayloadTooLarge,
    SignalLimitExceeded,
    TargetNotSignalable,
    TokenExpired,
    WaitpointClosed,
)
from flowfabric.operations.execution_queries import ExecutionQueries, ResumeSignals
from flowfabric.operations.signals import Signals
from flowfabric.operations.workers import Resumption
from tests.conformance.driver import FINAL, NOWHERE, Driver, refused, stranger, unfenced
from tests.conformance.waiting import (
    all_of,
    count,
    documents,
    on,
    pause,
    pause_claimed,
    pending,
    signal_to,
    signals,
    tampered,
)
from tests.moves import deliver_signal
from tests.proofs import proves

SATISFIED = "resume_condition_satisfied"
APPENDED = "appended_to_waitpoint"
EVERY_BYTE = bytes(range(256))


@proves(Signals.signal)
async def test_the_matching_signal_resumes_the_same_attempt(driver: Driver) -> None:
    policy = {"timeout_policy": {"attempt_timeout_ms": 9_000}}
    claimed = await driver.started(policy=policy)
    driver.clock.advance(2_000)
    paused = await pause_claimed(driver, claimed)
    driver.clock.advance(60_000)
    assert await paused.signal("no") == "no_op"
    assert await paused.signal("go", payload=EVERY_BYTE, correlation_id="c-1") == SATISFIED
    record = await driver.record(paused.execution_id)
    assert (record.state, record.next, record.detail, record.wake_at) == (
        "waiting",
        "resume",
        "",
        0,
    )
    assert (record.suspension_id, record.waitpoint_id, record.signal_count) == ("", "", 2)
    assert record.attempt is not None
    assert record.attempt.state == "suspended"

    again = await paused.resumed()
    assert again.record.lease_epoch == 2
    assert (again.record.attempt_index, again.record.attempt_id) == (0, claimed.record.attempt_id)
    assert again.record.attempt_until == driver.clock() + 7_000
    assert again.record.attempt is not None
    assert (again.record.attempt.state, again.record.attempt.resumed_at) == (
        "started",
        driver.clock(),
    )
    shown = await resume_signals(driver, paused.execution_id)
    own = paused.details.suspension_id
    assert again.resumed_by == Resumption(own, "signal", shown.signals)
    entry = (await driver.history(paused.execution_id))[-1]
    assert (entry.event, entry.fields["reason"]) == ("acquired", "claim_resumed")


async def resume_signals(driver: Driver, execution_id: str, index: int = 0) -> ResumeSignals:
    return await driver.engine.signals.resume_signals(execution_id, index)


@proves(ExecutionQueries.resume_signals)
@pytest.mark.parametrize("payload", [EVERY_BYTE, b"", None, b"\xff\xfe", b"x" * 65_536])
async def test_the_resumed_attempt_reads_the_signal_as_it_was_sent(
    driver: Driver, payload: bytes | None
) -> None:
    paused = await pause(driver)
    sent = paused.request(payload=payload, signal_category="cat", correlation_id="c")
    await deliver_signal(driver.engine, sent)
    (signal,) = (await resume_signals(driver, paused.execution_id)).signals
    assert signal.payload == payload
    assert (signal.signal_id, signal.signal_name) == (sent.signal_id, "go")
    assert (signal.signal_category, signal.correlation_id) == ("cat", "c")
    assert (signal.source_type, signal.source_identity) == ("external", "grace")
    assert signal.accepted_at == driver.clock()


async def test_only_signals_that_counted_are_shown_in_order_of_acceptance(driver: Driver) -> None:
    paused = await pause(driver, signal_set("a", "b", "c"))
    for name in ("c", "x", "a", "a", "b"):
        driver.clock.advance(1)
        await paused.signal(name)
    shown = await resume_signals(driver, paused.execution_id)
    assert shown.resumed_by == "signal"
    assert [one.signal_name for one in shown.signals] == ["c", "a", "b"]
    assert [one.seq for one in await signals(driver, paused.execution_id)] == [1, 2, 3, 4, 5]
    assert [one.matched for one in await signals(driver, paused.execution_id)] == [
        True,
        False,
        True,
        False,
        True,
    ]


async def test_nothing_is_shown_of_another_attempt_or_before_a_resume(driver: Driver) -> None:
    assert await resume_signals(driver, await driver.submit()) == ResumeSignals(signals=())
    paused = await pause(driver, signal_set("a", "b"))
    await paused.signal("a")
    assert await resume_signals(driver, paused.execution_id) == ResumeSignals(signals=())
    await paused.signal("b")
    assert len((await resume_signals(driver, paused.execution_id)).signals) == 2
    assert await resume_signals(driver, paused.execution_id, 1) == ResumeSignals(signals=())
    with refused(ExecutionNotFound):
        await resume_signals(driver, NOWHERE)


async def test_an_accepted_signal_is_stored_whole(driver: Driver) -> None:
    paused = await pause(driver)
    await paused.signal(
        "other",
        payload=b"p",
        payload_encoding="cbor",
        target_scope="execution",
        created_at=5,
        idempotency_key="k",
    )
    (kept,) = await signals(driver, paused.execution_id)
    assert (kept.payload, kept.payload_encoding, kept.target_scope) == (b"p", "cbor", "execution")
    assert (kept.created_at, kept.accepted_at, kept.seq) == (5, driver.clock(), 1)
    assert (kept.idempotency_key, kept.matched, kept.observed_effect) == ("k", False, "no_op")


async def test_counters_tell_what_came(driver: Driver) -> None:
    paused = await pause(driver, signal_set("a", "b"))
    for name in ("a", "x", "a"):
        driver.clock.advance(10)
        await paused.signal(name)
    own = paused.at().waitpoint_id
    waitpoint = waitpoint_in(await documents(driver, paused.execution_id), own)
    assert waitpoint is not None
    assert (waitpoint.signal_count, waitpoint.matched_signal_count) == (3, 1)
    assert waitpoint.last_signal_at == driver.clock()
    assert (await paused.suspension()).last_signal_at == driver.clock()
    assert (await driver.record(paused.execution_id)).signal_count == 3


async def test_the_log_tells_every_signal(driver: Driver) -> None:
    paused = await pause(driver, signal_set("a", "b"))
    first = paused.request("a", idempotency_key="k")
    await deliver_signal(driver.engine, first)
    await paused.send("a", idempotency_key="k")
    await paused.signal("b", source_identity="other")
    entries = await driver.events("signal")
    assert [entry.details["effect"] for entry in entries] == [APPENDED, "deduped", SATISFIED]
    assert [entry.details["signal_id"] for entry in entries[:2]] == [first.signal_id] * 2
    assert entries[0].details["waitpoint_id"] == paused.at().waitpoint_id
    assert entries[2].details["source_identity"] == "other"
    assert {entry.kind for entry in entries} == {"signal"}
    assert all("lease" not in entry.families for entry in entries)


async def test_a_resume_by_signal_is_no_completion(driver: Driver) -> None:
    paused = await pause(driver)
    await paused.signal()
    assert await driver.completions() == []


# ---- resume delay


@pytest.mark.parametrize(
    ("policy", "asked", "delay"), [(None, None, 0), (500, None, 500), (500, 0, 0), (None, 70, 70)]
)
async def test_a_resume_waits_as_the_signal_or_the_policy_says(
    driver: Driver, policy: int | None, asked: int | None, delay: int
) -> None:
    paused = await pause(driver, resume_policy=ResumePolicy(resume_delay_ms=policy))
    assert await paused.signal(resume_delay_ms=asked) == SATISFIED
    record = await driver.record(paused.execution_id)
    if not delay:
        assert record.state == "waiting"
        return
    assert (record.state, record.reason) == ("delayed", "resume_delay")
    assert record.wake_at == driver.clock() + delay
    assert record.detail == f"resume delay {delay}ms after signal go"
    await driver.pass_time(delay)
    assert (await paused.resumed()).resumed_by is not None


# ---- conditions


async def test_all_waitpoints_of_a_suspension_count_and_close_together(driver: Driver) -> None:
    bindings = tuple(Fresh("", key) for key in "abc")
    paused = await pause(driver, composite(all_of("a", "b", "c")), waitpoints=bindings)
    assert await paused.signal(key="b") == APPENDED
    assert await paused.signal(key="b") == "appended_to_waitpoint_duplicate"
    assert await paused.signal("stop", key="c") == "signal_ignored_matcher_failed"
    assert await paused.signal(key="a") == APPENDED
    assert await paused.signal(key="c") == SATISFIED
    for key in "abc":
        with refused(TargetNotSignalable):
            await paused.send(key=key)
    shown = (await resume_signals(driver, paused.execution_id)).signals
    assert len(shown) == 3
    closed = await paused.suspension()
    assert (closed.close_reason, closed.closed_at, closed.satisfied_at) == (
        "resumed",
        driver.clock(),
        driver.clock(),
    )
    assert closed.closer_signal_id == shown[-1].signal_id
    counted = [one.signal_id for one in closed.evaluation.satisfiers]
    assert counted == [one.signal_id for one in shown]


@pytest.mark.parametrize(
    ("tree", "keys", "sent", "expected"),
    [
        (
            count(2, "DistinctWaitpoints", "a", "b"),
            "ab",
            [("go", "a", "x"), ("go", "a", "y"), ("go", "b", "x")],
            [APPENDED, "appended_to_waitpoint_duplicate", SATISFIED],
        ),
        (
            count(2, "DistinctSignals", "a", name="go"),
            "a",
            [("go", "a", "x"), ("no", "a", "x"), ("go", "a", "x")],
            [APPENDED, "signal_ignored_matcher_failed", SATISFIED],
        ),
        (
            count(2, "DistinctSources", "a"),
            "a",
            [("go", "a", "x"), ("go", "a", "x"), ("go", "a", "y")],
            [APPENDED, "appended_to_waitpoint_duplicate", SATISFIED],
        ),
        (
            AnyOf((count(2, "DistinctSources", "a", name="yes"), on("a", "no"))),
            "a",
            [("yes", "a", "x"), ("no", "a", "x")],
            [APPENDED, SATISFIED],
        ),
        (
            AllOf(
                (
                    count(2, "DistinctSources", "a", name="x"),
                    count(2, "DistinctSources", "a", name="y"),
                )
            ),
            "a",
            [("x", "a", "1"), ("x", "a", "2"), ("y", "a", "1"), ("y", "a", "2")],
            [APPENDED, APPENDED, APPENDED, SATISFIED],
        ),
        (
            AnyOf((AllOf((AnyOf((AllOf((on("a"), on("b"))),)),)),)),
            "ab",
            [("go", "b", "1"), ("go", "a", "1")],
            [APPENDED, SATISFIED],
        ),
    ],
)
async def test_composites_are_met_as_they_say(
    driver: Driver,
    tree: Node,
    keys: str,
    sent: list[tuple[str, str, str]],
    expected: list[str],
) -> None:
    bindings = tuple(Fresh("", key) for key in keys)
    paused = await pause(driver, composite(tree), waitpoints=bindings)
    effects = [await paused.signal(name, key=key, source_identity=who) for name, key, who in sent]
    assert effects == expected
    assert await paused.state() == "waiting"


@pytest.mark.parametrize(
    ("condition", "fields"),
    [
        (Condition(condition_type="operator_only"), {}),
        (Condition(condition_type="timeout_only"), {"timeout_ms": 9_000}),
    ],
)
async def test_no_signal_meets_a_condition_that_waits_for_none(
    driver: Driver, condition: Condition, fields: dict[str, Any]
) -> None:
    paused = await pause(driver, condition, **fields)
    for name in ("go", "operator_only", "timeout"):
        assert await paused.signal(name) == "no_op"
    assert await paused.state() == "suspended"
    assert (await driver.record(paused.execution_id)).signal_count == 3


async def test_any_signal_meets_a_wildcard(driver: Driver) -> None:
    assert await (await pause(driver, single())).signal("whatever") == SATISFIED


# ---- authentication


async def test_bad_tokens_get_their_codes(driver: Driver) -> None:
    paused, other = await pause(driver), await pause(driver)
    token = paused.at().waitpoint_token
    raw = token.reveal()
    cases: list[tuple[WaitpointToken, type[FlowFabricError]]] = [
        (WaitpointToken(""), MissingToken),
        (tampered(token), InvalidToken),
        (WaitpointToken(raw[:-1]), InvalidToken),
        (WaitpointToken(raw.partition(":")[2]), InvalidToken),
        (WaitpointToken("k9:" + raw.partition(":")[2]), InvalidToken),
        (other.at().waitpoint_token, InvalidToken),
    ]
    for bad, code in cases:
        with refused(code) as caught:
            await paused.send(waitpoint_token=bad)
        assert raw not in str(caught.value) + repr(caught.value)
    assert await signals(driver, paused.execution_id) == []
    assert (await driver.record(paused.execution_id)).signal_count == 0
    assert await paused.signal() == SATISFIED


async def test_a_token_is_worth_nothing_elsewhere(driver: Driver) -> None:
    bindings = (Fresh("", "a"), Fresh("", "b"))
    paused = await pause(driver, composite(all_of("a", "b")), waitpoints=bindings)
    other = await pause(driver)
    with refused(InvalidToken):
        await paused.send(key="a", waitpoint_token=paused.at("b").waitpoint_token)
    with refused(InvalidToken):
        await other.send(
            waitpoint_id=paused.at("a").waitpoint_id,
            waitpoint_token=paused.at("a").waitpoint_token,
        )
    with refused(InvalidToken):
        await paused.send(waitpoint_id=other.at().waitpoint_id)


async def test_an_unknown_waitpoint_is_told_what_a_wrong_token_is_told(driver: Driver) -> None:
    paused = await pause(driver)
    told = set()
    for fields in (
        {"waitpoint_id": stranger()},
        {"waitpoint_token": tampered(paused.at().waitpoint_token)},
        {"waitpoint_id": stranger(), "waitpoint_token": tampered(paused.at().waitpoint_token)},
    ):
        with refused(InvalidToken) as caught:
            await paused.send(**fields)
        told.add((str(caught.value), tuple(caught.value.details)))
    assert len(told) == 1


@pytest.mark.parametrize("situation", [*FINAL, "active", "waiting", "suspended"])
async def test_who_cannot_authenticate_learns_nothing_of_the_state(
    driver: Driver, situation: str
) -> None:
    paused = await pause(driver)
    held = await driver.reach(situation)
    forged = signal_to(held.execution_id, paused.at())
    with refused(InvalidToken):
        await deliver_signal(driver.engine, forged)


async def test_a_missing_execution_comes_before_the_token(driver: Driver) -> None:
    paused = await pause(driver)
    with refused(ExecutionNotFound):
        await paused.send(execution_id=NOWHERE, waitpoint_token=WaitpointToken(""))


async def test_the_constant_time_comparison_has_the_last_word(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = await pause(driver)
    compared: list[int] = []

    def never(one: bytes, other: bytes) -> bool:
        compared.append(len(one) - len(other))
        return False

    monkeypatch.setattr(hmac, "compare_digest", never)
    with refused(InvalidToken):
        await paused.send()
    assert compared == [0]
    monkeypatch.undo()
    assert await paused.signal() == SATISFIED


async def test_a_failed_check_is_noted_at_most_once_a_second(driver: Driver) -> None:
    paused = await pause(driver)
    before = await driver.record(paused.execution_id)
    for _ in range(3):
        with refused(MissingToken):
            await paused.send(waitpoint_token=WaitpointToken(""))
    noted = await driver.record(paused.execution_id)
    assert noted.last_hmac_validation_failed_at == driver.clock()
    assert noted.version == before.version + 1
    driver.clock.advance(999)
    for _ in range(2):
        with refused(InvalidToken):
            await paused.send(waitpoint_id=stranger())
        driver.clock.advance(1)
    again = await driver.record(paused.execution_id)
    assert again.version == before.version + 2
    assert again.last_hmac_validation_failed_at == driver.clock() - 1


async def test_the_token_of_an_old_suspension_does_not_end_a_newer_one(driver: Driver) -> None:
    first = await pause(driver)
    await driver.engine.operators.resume(first.execution_id)
    second = await pause_claimed(driver, await first.resumed())
    with refused(WaitpointClosed):
        await first.send()
    assert await second.state() == "suspended"
    assert await second.signal() == SATISFIED


async def test_a_key_that_was_rotated_out_stops_at_the_end_of_its_grace(driver: Driver) -> None:
    paused = await pause(driver)
    keys = driver.engine.keys
    await keys.rotate_waitpoint_hmac_secret("k2", "ab" * 32, 5_000)
    await keys.rotate_waitpoint_hmac_secret("k3", "cd" * 32, 9_000)
    driver.clock.advance(5_000)
    assert await paused.signal("no") == "no_op"
    driver.clock.advance(1)
    with refused(TokenExpired):
        await paused.send()
    fresh = await pause(driver)
    assert fresh.at().waitpoint_token.kid == "k3"


# ---- repeats


async def test_a_repeat_by_key_or_id_is_told_which_signal_arrived(driver: Driver) -> None:
    paused = await pause(driver, signal_set("a", "b"))
    sent = paused.request("a", idempotency_key="k*")
    await deliver_signal(driver.engine, sent)
    for fields in ({"idempotency_key": "k*"}, {"signal_id": sent.signal_id}):
        assert await paused.send("b", **fields) == Duplicate(sent.signal_id)
    assert await paused.state() == "suspended"
    assert (await driver.record(paused.execution_id)).signal_count == 1
    assert await paused.signal("b", idempotency_key="k") == SATISFIED


@pytest.mark.parametrize("by", ["idempotency_key", "signal_id"])
@pytest.mark.parametrize("then", ["waiting", "active", "completed", "cancelled", "limit"])
async def test_the_sender_of_the_resuming_signal_learns_that_it_arrived(
    driver: Driver, by: str, then: str
) -> None:
    policy = {"max_signals_per_execution": 1} if then == "limit" else {}
    paused = await pause(driver, submit={"policy": policy})
    sent = paused.request(idempotency_key="k")
    await deliver_signal(driver.engine, sent)
    if then in ("active", "completed"):
        again = await paused.resumed()
        if then == "completed":
            await driver.engine.outcomes.complete(again.proof)
    if then == "cancelled":
        await driver.engine.outcomes.cancel(unfenced(paused.execution_id), "enough")
    fields = {"idempotency_key": "k"} if by == "idempotency_key" else {"signal_id": sent.signal_id}
    assert await paused.send(**fields) == Duplicate(sent.signal_id)
    assert len(await signals(driver, paused.execution_id)) == 1
    (*_, entry) = await driver.events("signal")
    assert entry.details["effect"] == "deduped"


async def test_a_key_is_remembered_for_its_time_and_its_waitpoint(driver: Driver) -> None:
    bindings = (Fresh("", "a"), Fresh("", "b"))
    paused = await pause(driver, composite(all_of("a", "b")), waitpoints=bindings)
    first = await paused.send("no", key="a", idempotency_key="k", dedup_ttl_ms=1_000)
    assert isinstance(first, Accepted)
    assert isinstance(await paused.send("no", key="b", idempotency_key="k"), Accepted)
    driver.clock.advance(999)
    assert await paused.send("no", key="a", idempotency_key="k") == Duplicate(first.signal_id)
    driver.clock.advance(1)
    second = await paused.send("no", key="a", idempotency_key="k", dedup_ttl_ms=500)
    assert isinstance(second, Accepted)
    assert await paused.send("no", key="a", idempotency_key="k") == Duplicate(second.signal_id)
    driver.clock.advance(500)
    assert isinstance(await paused.send("no", key="a", idempotency_key="k"), Accepted)


async def test_a_ttl_of_nothing_forgets_the_key_but_not_the_id(driver: Driver) -> None:
    paused = await pause(driver)
    sent = paused.request("no", idempotency_key="k", dedup_ttl_ms=0)
    await deliver_signal(driver.engine, sent)
    assert isinstance(await paused.send("no", idempotency_key="k", dedup_ttl_ms=0), Accepted)
    assert isinstance(await deliver_signal(driver.engine, sent), Duplicate)


# ---- late signals and limits


async def test_late_signals_are_refused_and_not_recorded(driver: Driver) -> None:
    paused = await pause(driver)
    await paused.signal()
    with refused(TargetNotSignalable):
        await paused.send()
    claimed = await paused.resumed()
    with refused(TargetNotSignalable):
        await paused.send()
    await pause_claimed(driver, claimed)
    with refused(WaitpointClosed):
        await paused.send()
    assert len(await signals(driver, paused.execution_id)) == 1


async def end(driver: Driver, execution_id: str, how: str) -> None:
    match how:
        case "cancel":
            await driver.engine.outcomes.cancel(unfenced(execution_id), "enough")
        case "deadline":
            await driver.pass_time(1_000)
        case _:
            await driver.engine.deps.push(skip_plan(execution_id))


@pytest.mark.parametrize(
    ("how", "state", "attempt", "stream"),
    [
        ("cancel", "cancelled", "ended_cancelled", "attempt_cancelled"),
        ("deadline", "expired", "ended_failure", "expired"),
        ("skip", "skipped", "ended_cancelled", "dependency_impossible"),
    ],
)
async def test_what_ends_the_execution_closes_every_waitpoint(
    driver: Driver, how: str, state: str, attempt: str, stream: str
) -> None:
    bindings = tuple(Fresh("", key) for key in "abc")
    submit = {"deadline_at": driver.clock() + 1_000}
    paused = await pause(
        driver, composite(all_of("a", "b", "c")), waitpoints=bindings, submit=submit
    )
    await paused.signal(key="a")
    await end(driver, paused.execution_id, how)
    for key in "abc":
        with refused(TargetNotSignalable):
            await paused.send(key=key)
    page = await driver.engine.waitpoints.list_pending_waitpoints(paused.execution_id)
    assert page.items == []
    record = await driver.record(paused.execution_id)
    assert (record.state, record.completed_at) == (state, driver.clock())
    assert not is_open(record, (await paused.suspension()).suspension_id)
    (ended,) = await driver.attempts(paused.execution_id)
    assert (ended.state, ended.closed_reason) == (attempt, stream)


async def test_the_policys_limit_holds_for_all_signals_together(driver: Driver) -> None:
    paused = await pause(driver, submit={"policy": {"max_signals_per_execution": 2}})
    await paused.signal("x")
    await paused.signal("x")
    with refused(SignalLimitExceeded):
        await paused.send()
    with refused(SignalLimitExceeded):
        await paused.send(max_signals_per_execution=100)
    assert len(await signals(driver, paused.execution_id)) == 2


@pytest.mark.parametrize(
    ("policy", "sent", "limit"), [(2, 1, 1), (0, 1, 1), (2, 0, 2), (2, None, 2), (2, 9, 2)]
)
async def test_a_limit_sent_with_the_signal_can_only_be_lower(
    driver: Driver, policy: int, sent: int | None, limit: int
) -> None:
    paused = await pause(driver, submit={"policy": {"max_signals_per_execution": policy}})
    for _ in range(limit):
        await paused.signal("x", max_signals_per_execution=sent)
    with refused(SignalLimitExceeded):
        await paused.send(max_signals_per_execution=sent)


async def test_a_limit_of_zero_is_none(driver: Driver) -> None:
    paused = await pause(driver, submit={"policy": {"max_signals_per_execution": 0}})
    for _ in range(5):
        await paused.signal("x")


# ---- values


@pytest.mark.parametrize(
    "fields",
    [
        {"signal_name": ""},
        {"signal_name": "__operator_only__"},
        {"signal_name": "__x"},
        {"signal_name": "x" * 257},
        {"signal_id": "nonsense"},
        {"waitpoint_id": "nonsense"},
        {"execution_id": "nonsense"},
        {"target_scope": "flow"},
        {"created_at": -1},
        {"resume_delay_ms": -1},
        {"dedup_ttl_ms": -1},
        {"max_signals_per_execution": -1},
        {"payload": "text"},
        {"source_identity": "x" * 1_025},
        {"waitpoint_token": "k1:raw"},
    ],
)
async def test_values_are_checked_before_anything_else(
    driver: Driver, fields: dict[str, Any]
) -> None:
    paused = await pause(driver)
    before = await driver.snapshot()
    with refused(InvalidInput):
        await paused.send(**fields)
    assert await driver.snapshot() == before


async def test_a_payload_above_the_cap_is_refused(driver: Driver) -> None:
    paused = await pause(driver)
    with refused(PayloadTooLarge):
        await paused.send(payload=b"x" * 65_537, execution_id=NOWHERE)


# ---- secrets


async def test_no_rendering_shows_a_token_or_a_payload(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    paused = await pause(driver)
    request = paused.request(payload=b"personal words")
    await deliver_signal(driver.engine, request)
    stored = await documents(driver, paused.execution_id)
    shown = await resume_signals(driver, paused.execution_id)
    events = await driver.events()
    text = repr((request, stored, shown, events, paused.details, paused.claimed)) + caplog.text
    assert paused.at().waitpoint_token.digest not in text
    assert "personal words" not in text


async def test_a_signal_to_a_live_execution_without_suspension_finds_no_target(
    driver: Driver,
) -> None:
    claimed = await driver.started()
    early = await pending(driver, claimed.proof)
    await driver.engine.waitpoints.close_waitpoint(claimed.execution_id, early.waitpoint_id)
    with refused(TargetNotSignalable):
        await deliver_signal(driver.engine, signal_to(claimed.execution_id, early))
