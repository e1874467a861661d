"""Submits by name: options that are left out are those that the task declares."""

from typing import Any

import msgspec
import pytest

from flowfabric.backend.base import Backend
from flowfabric.core.policy import FixedBackoff, read_policy
from flowfabric.core.record import Record
from flowfabric.engine import config_cache, engine_on
from flowfabric.errors import Conflict, InvalidInput, InvalidPolicyJson
from flowfabric.operations.executions import ExecutionDuplicate, Submission
from flowfabric.operations.flows import GraphEdge, GraphNode, GraphSubmission
from flowfabric.operations.schedules import NewSchedule
from flowfabric.operations.tasks import NewTask
from tests.clock import VirtualClock
from tests.conformance.driver import Driver, refused
from tests.conformance.dying import Dying

HOUR = 3_600_000
POLICY = {
    "retry_policy": {"max_retries": 5, "backoff": {"type": "fixed", "delay_ms": 10}},
    "timeout_policy": {"attempt_timeout_ms": 2_000},
    "concurrency_key": "declared",
    "concurrency_limit": 7,
    "retention_ms": HOUR,
}


@pytest.fixture
async def declared(driver: Driver) -> Driver:
    await driver.engine.tasks.register_tasks(
        "w",
        [NewTask(kind="send", lane="mail", priority=4, tags={"team": "ops"}, policy=POLICY)],
    )
    return driver


async def submitted(driver: Driver, **fields: Any) -> Record:
    new = Submission(**{"kind": "send"} | fields)
    return await driver.record((await driver.engine.executions.create(new)).execution_id)


async def test_what_is_left_out_is_as_declared(declared: Driver) -> None:
    record = await submitted(declared)
    assert (record.lane, record.priority, record.tags) == ("mail", 4, {"team": "ops"})
    assert read_policy(record.policy) == read_policy(
        msgspec.json.encode(POLICY | {"priority": 4}).decode()
    )
    assert record.attempt_timeout_ms == 2_000
    assert record.retention_ms == HOUR


async def test_what_is_stated_is_kept(declared: Driver) -> None:
    policy = {
        "retry_policy": {"max_retries": 0},
        "timeout_policy": {"execution_deadline_ms": 9_000},
        "concurrency_key": "own",
        "retention_ms": None,
    }
    record = await submitted(
        declared, lane="default", priority=0, tags={}, policy=msgspec.json.encode(policy)
    )
    assert (record.lane, record.priority, record.tags) == ("default", 0, {})
    kept = read_policy(record.policy)
    assert kept.retry_policy is not None
    assert kept.retry_policy.max_retries == 0
    # Within a part each option stands for itself, and a limit belongs to its key.
    assert kept.retry_policy.backoff == FixedBackoff(10)
    assert kept.timeout_policy is not None
    assert kept.timeout_policy.execution_deadline_ms == 9_000
    assert kept.timeout_policy.attempt_timeout_ms == 2_000
    assert (kept.concurrency_key, kept.concurrency_limit) == ("own", 1)
    # Null is the same as left out.
    assert kept.retention_ms == HOUR


async def test_a_typed_submit_is_not_changed(declared: Driver) -> None:
    record = await submitted(declared, typed=True, lane="default")
    assert (record.lane, record.priority, record.tags, record.policy) == ("default", 0, {}, "")


async def test_an_unknown_kind_has_the_defaults(declared: Driver) -> None:
    for fields in ({"kind": "other"}, {"namespace": "elsewhere"}):
        record = await submitted(declared, **fields)
        assert (record.lane, record.priority, record.policy) == ("default", 0, "")


async def test_the_newest_declaration_counts_at_once(
    declared: Driver, backend: Backend, clock: VirtualClock
) -> None:
    assert (await submitted(declared)).lane == "mail"
    clock.advance(1)
    await declared.engine.tasks.register_tasks("w2", [NewTask(kind="send", lane="fast")])
    assert (await submitted(declared)).lane == "fast"
    await declared.engine.tasks.delete_task("send")
    assert (await submitted(declared)).lane == "default"
    # What a declaration does not know of retries is none, whatever else is stated of them.
    await declared.engine.tasks.register_tasks("w3", [NewTask(kind="send")])
    record = await submitted(declared, policy={"retry_policy": {"backoff": {"type": "fixed"}}})
    retry = read_policy(record.policy).retry_policy
    assert retry is not None
    assert retry.max_retries == 0


async def test_a_known_task_costs_no_call(
    declared: Driver, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow the machine is.
    monkeypatch.setattr(config_cache, "_FRESH_S", 60.0)
    counted = Dying(backend)
    engine = engine_on(counted.as_backend())
    for _ in range(20):
        for kind in ("send", "unknown"):
            await engine.executions.create(Submission(kind=kind))
    # The first submits read and store lanes and tasks; notifications of that may come late.
    assert counted.calls.count("create") == 40
    assert len(counted.calls) < 40 + 16
    await engine.close()


async def test_a_declared_delay_begins_with_the_submit(driver: Driver, clock: VirtualClock) -> None:
    await driver.engine.tasks.register_tasks(
        "w", [NewTask(kind="send", delay_ms=HOUR), NewTask(kind="at", delay_until=2**50)]
    )
    now = await driver.engine.deps.store.backend.now()
    assert (await submitted(driver)).wake_at == now + HOUR
    assert (await submitted(driver, delay_until=now + 5)).wake_at == now + 5
    assert (await submitted(driver, policy={"delay_until": now + 6})).wake_at == now + 6
    assert (await submitted(driver, kind="at")).wake_at == 2**50


async def test_a_declared_key_finds_the_first(driver: Driver) -> None:
    await driver.engine.tasks.register_tasks("w", [NewTask(kind="send", idempotency_key="once")])
    first = await submitted(driver)
    again = await driver.engine.executions.create(Submission(kind="send"))
    assert again == ExecutionDuplicate(first.execution_id)
    assert (await submitted(driver, idempotency_key="own")).execution_id != first.execution_id


async def test_a_policy_that_is_wrong_is_refused_as_ever(declared: Driver) -> None:
    for policy in ('{"retries": 1}', "[]", "{", {"retry_policy": 3}):
        with refused(InvalidPolicyJson):
            await submitted(declared, policy=policy)


async def test_the_members_of_a_graph_take_them_too(declared: Driver) -> None:
    graph = GraphSubmission(
        nodes=(
            GraphNode(name="a", kind="send"),
            GraphNode(name="b", kind="send", lane="own", priority=1),
            GraphNode(name="c", kind="send", lane="default", typed=True),
        )
    )
    made = await declared.engine.graphs.submit_graph(graph)
    found = {name: await declared.record(own) for name, own in made.executions.items()}
    assert [(one.lane, one.priority) for _, one in sorted(found.items())] == [
        ("mail", 4),
        ("own", 1),
        ("default", 0),
    ]


async def test_a_schedule_takes_those_of_the_hour(declared: Driver, clock: VirtualClock) -> None:
    engine = declared.engine
    asked: dict[str, dict[str, Any]] = {
        "plain": {},
        "own": {"lane": "own", "tags": {"a": "b"}},
        "typed": {"lane": "default", "typed": True},
    }
    for name, fields in asked.items():
        await engine.schedules.put(name, NewSchedule(kind="send", every_ms=HOUR, **fields))
    assert (await engine.schedules.get("plain")).lane == ""
    clock.advance(1)
    await engine.tasks.register_tasks("w", [NewTask(kind="send", lane="late", tags={"n": "1"})])
    await declared.pass_time(HOUR)
    found = {}
    for name in ("plain", "own", "typed"):
        info = await engine.schedules.get(name)
        record = await declared.record(info.last_execution_id)
        assert record.tags.pop("schedule_id") == name
        assert int(record.tags.pop("scheduled_for")) > 0
        found[name] = record.lane, record.tags
    assert found == {
        "plain": ("late", {"n": "1"}),
        "own": ("own", {"a": "b"}),
        "typed": ("default", {}),
    }
    done = await engine.schedules.trigger("plain")
    assert (await declared.record(done.execution_id)).lane == "late"


# ---- JSON input


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({"to": "ada", "n": [1, 2.5]}, b'{"to":"ada","n":[1,2.5]}'),
        ([1, {"a": None}], b'[1,{"a":null}]'),
        (msgspec.Raw(b' { "to" : "ada" } '), b'{"to":"ada"}'),
        (msgspec.Raw(b"null"), b""),
    ],
)
async def test_json_input_is_kept_in_its_shortest_form(
    driver: Driver, given: Any, stored: bytes
) -> None:
    record = await submitted(driver, arguments=given)
    seen = await driver.engine.deps.seen(record.execution_id, frozenset({"input"}))
    assert (seen.input or b"") == stored
    assert record.payload_encoding == ("json" if stored else "")
    # The same under a key, however it is written.
    key = {"idempotency_key": "k"}
    first = await submitted(driver, arguments=given, **key)
    assert (await submitted(driver, input=stored, **key)).execution_id == first.execution_id


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"arguments": {}, "input": b"{}"}, "input, input_payload: expected only one of them"),
        ({"arguments": {}, "payload_encoding": "x"}, "payload_encoding: input is json, not 'x'"),
        ({"arguments": "1"}, "input: expected an object or an array; input_payload takes all else"),
        ({"arguments": msgspec.Raw(b"{")}, "input: expected JSON: "),
        ({"arguments": {1j: 2}}, "input: expected JSON: "),
    ],
)
async def test_json_input_that_cannot_be_is_refused(
    driver: Driver, fields: dict[str, Any], told: str
) -> None:
    with refused(InvalidInput) as caught:
        await submitted(driver, **fields)
    assert caught.value.detail.startswith(told)


async def test_a_graph_and_a_schedule_take_json_input(driver: Driver, clock: VirtualClock) -> None:
    engine = driver.engine

    def graph(arguments: Any) -> GraphSubmission:
        return GraphSubmission(
            nodes=(GraphNode(name="a", kind="send", arguments=arguments),), idempotency_key="g"
        )

    made = await engine.graphs.submit_graph(graph({"to": "ada"}))
    seen = await engine.deps.seen(made.executions["a"], frozenset({"input"}))
    assert seen.input == b'{"to":"ada"}'
    again = await engine.graphs.submit_graph(graph(msgspec.Raw(b'{ "to": "ada" }')))
    assert again.flow_id == made.flow_id
    with refused(Conflict):
        await engine.graphs.submit_graph(graph({"to": "bob"}))
    info = await engine.schedules.put("s", NewSchedule(kind="k", every_ms=HOUR, arguments=[1]))
    assert (info.payload, info.payload_encoding) == (b"[1]", "json")
    with refused(InvalidInput, "input, payload: expected only one of them"):
        await engine.schedules.put(
            "s", NewSchedule(kind="k", every_ms=HOUR, arguments=[1], payload=b"x")
        )


# ---- arguments

ARGUMENTS = {
    "type": "object",
    "properties": {"to": {"type": "string"}, "copies": {"type": "integer", "minimum": 1}},
    "required": ["to"],
    "additionalProperties": False,
    "x-positional": ["to", "copies"],
}


@pytest.fixture
async def checked(driver: Driver) -> Driver:
    await driver.engine.tasks.register_tasks("w", [NewTask(kind="send", arguments=ARGUMENTS)])
    return driver


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "input.to: it is missing"),
        ({"arguments": {"to": 1}}, "input.to: expected string, got integer"),
        ({"arguments": ["a", 0]}, "input.copies: expected at least 1, got 0"),
        ({"arguments": ["a", 1, 2]}, "input: expected at most 2, got 3"),
        (
            {"input": b'{"to": "a", "copys": 2}', "payload_encoding": "json"},
            "input.copys: there is no such argument; did you mean copies?",
        ),
        ({"input": b"[]"}, "input.to: it is missing"),
        ({"input": b"7"}, "input: expected object, got integer"),
        ({"input": b"{"}, "input: expected JSON: "),
        ({"input": b"[" * 100_000}, "input: expected JSON: "),
    ],
)
async def test_arguments_that_the_task_cannot_take_are_refused(
    checked: Driver, fields: dict[str, Any], told: str
) -> None:
    with refused(InvalidInput) as caught:
        await submitted(checked, **fields)
    assert caught.value.detail.startswith(told)
    single, other = await checked.engine.executions.create_many(
        [Submission(kind="send", **fields), Submission(kind="other", **fields)]
    )
    assert isinstance(single, InvalidInput)
    assert not isinstance(other, InvalidInput)


async def test_only_json_by_name_is_checked(checked: Driver) -> None:
    for fields in (
        {"arguments": {"to": "ada"}},
        {"arguments": ["ada", 2]},
        {"input": b'{"to": "ada"}'},
        {"input": b"7", "typed": True},
        {"input": b"\xff", "payload_encoding": "bytes"},
        {"input": b"7", "namespace": "elsewhere"},
    ):
        await submitted(checked, **fields)


async def test_a_member_that_gets_its_input_from_another_is_not_checked(checked: Driver) -> None:
    def graph(*edges: GraphEdge) -> GraphSubmission:
        nodes = (GraphNode(name="a", kind="other"), GraphNode(name="b", kind="send"))
        return GraphSubmission(nodes=nodes, edges=edges)

    edge = GraphEdge(source="a", target="b", data_passing_ref="input")
    await checked.engine.graphs.submit_graph(graph(edge))
    with refused(InvalidInput, "input.to: it is missing"):
        await checked.engine.graphs.submit_graph(graph(GraphEdge(source="a", target="b")))


async def test_a_schedule_is_checked_when_it_is_put(checked: Driver, clock: VirtualClock) -> None:
    engine = checked.engine
    with refused(InvalidInput, "input.to: it is missing"):
        await engine.schedules.put("s", NewSchedule(kind="send", every_ms=HOUR))
    fine = NewSchedule(kind="send", every_ms=HOUR, arguments={"to": "ada"})
    await engine.schedules.put("s", fine)
    # The task changes: its executions fail where they are seen, and who triggers one is told.
    clock.advance(1)
    await engine.tasks.register_tasks(
        "w", [NewTask(kind="send", arguments=ARGUMENTS | {"required": ["to", "copies"]})]
    )
    await checked.pass_time(HOUR)
    assert (await engine.schedules.get("s")).last_execution_id
    with refused(InvalidInput, "input.copies: it is missing"):
        await engine.schedules.trigger("s")
