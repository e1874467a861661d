"""What a worker says of its tasks when it starts: to an engine in its process and over HTTP."""

import asyncio
import enum
import inspect
import logging
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowfabric import ExecutionFailed, FlowFabric, Payload, Tasks
from flowfabric.core.json_schema import JsonSchema
from flowfabric.errors import InvalidInput, TransportFault
from flowfabric.operations.executions import Submission
from flowfabric.operations.tasks import TaskInfo
from flowfabric.worker.codecs import Undecodable
from flowfabric.worker.handlers import TaskHandler
from flowfabric.worker.runtime import Worker
from flowfabric.worker.schemas import arguments_schema, result_schema
from flowfabric.worker.signatures import Signature


@dataclass
class Address:
    street: str
    number: int = 1


class Person(pydantic.BaseModel):
    age: int


async def declared(fabric: FlowFabric) -> dict[str, TaskInfo]:
    return {one.kind: one async for one in fabric.tasks()}


async def test_a_worker_that_starts_registers_its_tasks(fabric: FlowFabric) -> None:
    @fabric.task(lane="mail", retries=3, backoff="2s", needs=["smtp"], tags={"team": "ops"})
    async def send(to: Address, copies: int = 1) -> str:
        """Send a letter."""
        return to.street * copies

    tasks = Tasks()

    @tasks.task(delay="5m", priority=4)
    def late() -> None: ...

    @fabric.handler("foreign")
    async def foreign(payload: Payload[int]) -> None: ...

    fabric.include(tasks)
    async with fabric.worker(build="r7") as worker:
        found = await declared(fabric)
    assert set(found) == {"late", "send"}
    mail = found["send"]
    assert (mail.lane_id, mail.tags, mail.build) == ("mail", {"team": "ops"}, "r7")
    assert mail.policy == {
        "retry_policy": {"backoff": {"type": "fixed", "delay_ms": 2000}},
        "routing_requirements": {"required_capabilities": ["smtp"]},
    }
    assert (mail.description, mail.workers) == ("Send a letter.", 1)
    assert mail.worker_instance_id == worker.options.instance_id
    assert mail.arguments is not None
    assert mail.arguments["required"] == ["to"]
    assert mail.arguments["properties"]["copies"] == {"type": "integer"}
    assert mail.result == {"type": "string"}
    assert (found["late"].delay_ms, found["late"].priority) == (300_000, 4)


async def registered(worker: Worker) -> None:
    """What the worker registers in the background is done."""
    while worker._registering:
        await asyncio.wait(set(worker._registering))


async def test_tasks_declared_while_it_works_are_registered_too(fabric: FlowFabric) -> None:
    @fabric.task
    async def first() -> None: ...

    async with fabric.worker() as worker:
        assert set(await declared(fabric)) == {"first"}

        @fabric.task
        async def later() -> None: ...

        await registered(worker)

        @fabric.task
        async def last() -> None: ...

        await registered(worker)
        found = await declared(fabric)
    # It is the same process, which has started once.
    assert len({one.started_at for one in found.values()}) == 1


async def test_a_worker_whose_tasks_are_refused_works_all_the_same(
    fabric: FlowFabric, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    @fabric.task(name="fine")
    async def fine() -> str:
        return "done"

    calls = await fabric._worker_calls()
    asked: list[Any] = []
    register = calls.register_tasks

    async def failing(*args: Any, **kwargs: Any) -> Any:
        asked.append(args)
        if len(asked) == 1:
            raise TransportFault("not now")
        done = await register(*args, **kwargs)
        done.items[0] = InvalidInput("too odd")
        return done

    monkeypatch.setattr(calls, "register_tasks", failing)
    with caplog.at_level(logging.WARNING, "flowfabric.worker"):
        async with fabric.worker() as worker:
            assert await fine.call() == "done"
            await registered(worker)
    told = [one.getMessage() for one in caplog.records]
    assert told[0].startswith("the tasks are not registered: transport: not now")
    assert told[1].startswith("task fine is not registered: invalid_input: too odd")
    assert len(asked) == 2


def schema_of(function: Any) -> dict[str, Any] | None:
    return arguments_schema(TaskHandler("x", function).signature)


def test_a_schema_says_no_more_than_the_worker_requires() -> None:
    def shape(
        a: int,
        /,
        b: Decimal,
        c: Person,
        d: Literal["x", 1] = 1,
        *,
        e: tuple[int, str] | None = None,
        **more: Address,
    ) -> list[Decimal]:
        return []

    schema = schema_of(shape)
    assert schema is not None
    members = schema["properties"]
    assert members["a"] == {"type": "integer"}
    # What the worker takes beside what it writes.
    assert members["b"]["type"] == ["string", "number"]
    assert members["c"] == {"title": "Person"}
    assert members["d"]["enum"] == [1, "x"]
    assert members["more"]["additionalProperties"] == {"$ref": "#/$defs/Address"}
    assert schema["required"] == ["a", "b", "c"]
    assert schema["additionalProperties"] is False
    assert schema["x-positional"] == ["a", "b", "c", "d"]
    assert set(schema["$defs"]) == {"Address"}
    result = result_schema(TaskHandler("x", shape).signature)
    assert result is not None
    assert result["items"]["type"] == ["string", "number"]


def test_what_has_no_schema_is_registered_without() -> None:
    def raw(body: bytes) -> None: ...

    def unreadable(one: "NoSuchType") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    def odd(one: set[Any] | list[int]) -> None: ...

    def many(*items: int) -> None: ...

    assert schema_of(raw) is None
    assert schema_of(unreadable) is None
    assert schema_of(odd) is None
    schema = schema_of(many)
    assert schema is not None
    assert "x-positional" not in schema
    assert result_schema(TaskHandler("x", unreadable).signature) is None


class Colour(enum.Enum):
    RED = "red"


class Tagged(msgspec.Struct, tag="tagged"):
    size: int = 0


class Other(msgspec.Struct, tag="other", rename="camel"):
    how_many: int


class Extra(TypedDict, total=False):
    note: str


def _takes(
    *,
    number: int,
    ratio: float,
    colour: Colour,
    address: Address,
    tagged: Tagged,
    either: Tagged | Other | None,
    extra: Extra,
    price: Decimal,
    at: datetime,
    ids: set[UUID],
    pairs: dict[int, tuple[int, str]],
    body: bytes,
    person: Person,
    flag: bool = True,
) -> None: ...


_SCALARS = st.one_of(
    *(st.none(), st.booleans(), st.integers(-3, 3), st.floats(allow_nan=False)),
    st.sampled_from(["", "red", "tagged", "other", "1.5", "aGk=", "2024-01-01T00:00:00Z"]),
    st.uuids().map(str),
)
_NAMES = st.sampled_from(["street", "number", "size", "type", "howMany", "note", "age", "1", "x"])
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(parameter=st.sampled_from(Signature(_takes).parameters), value=_VALUES)
def test_a_check_refuses_nothing_that_the_worker_takes(parameter: Any, value: object) -> None:
    def alone() -> None: ...

    alone.__signature__ = inspect.Signature([parameter])  # type: ignore[attr-defined]
    alone.__annotations__ = {parameter.name: _takes.__annotations__[parameter.name]}
    signature = Signature(alone)
    schema = arguments_schema(signature)
    if schema is None:
        return
    body = msgspec.json.encode({parameter.name: value})
    fault = JsonSchema(schema, len(msgspec.json.encode(schema))).fault_of(
        msgspec.json.decode(body), len(body)
    )
    try:
        signature.decode(body, "json")
    except Undecodable:
        return
    assert fault is None


# ---- submitted by name


async def test_a_submit_by_name_has_the_options_of_the_task(fabric: FlowFabric) -> None:
    @fabric.task(lane="mail", retries=2, backoff="1ms", needs=["smtp"], max_replays=3)
    async def send(to: str, copies: int = 1) -> str:
        raise ConnectionError(to * copies)

    async with fabric.worker(capabilities=["smtp"]):
        runs = [
            await fabric.submit("send", {"to": "ada"}),
            await fabric.submit("send", {"to": "ada"}, retries=0, tags={}),
            await fabric.submit("send", {"to": "ada"}, retries=1),
            await send.options(retries=3).submit("ada"),
        ]
        tries: list[int] = []
        for run in runs:
            with pytest.raises(ExecutionFailed):
                await run.result(timeout="30s")
            found = await fabric.admin.describe_execution(run.id)
            assert found.lane_id == "mail"
            tries.append(len((await fabric.admin.attempts(run.id)).attempts))
    assert tries == [3, 1, 2, 4]


async def test_arguments_may_be_left_out_or_come_as_a_list(fabric: FlowFabric) -> None:
    @fabric.task
    async def shape(a: int = 1, /, b: str = "x", *rest: int, c: int = 3) -> list[object]:
        return [a, b, list(rest), c]

    async def answer(**fields: Any) -> Any:
        made = await fabric.admin.submit(Submission(kind="shape", **fields))
        return await fabric.run(made.execution_id).result(timeout="30s")

    async with fabric.worker():
        assert await answer() == [1, "x", [], 3]
        assert await answer(arguments={"b": "y"}) == [1, "y", [], 3]
        assert await answer(arguments=[5, "z", 8, 9]) == [5, "z", [8, 9], 3]
        assert await (await fabric.submit("shape")).result(timeout="30s") == [1, "x", [], 3]


async def test_a_schedule_by_a_task_states_its_options(fabric: FlowFabric) -> None:
    @fabric.task(lane="nightly", retries=2)
    async def report() -> None: ...

    schedule = await fabric.schedule("s", report, every="1h")
    info = await schedule.info()
    assert (info.typed, info.lane) == (True, "nightly")
    await schedule.delete()


async def test_arguments_by_name_are_checked_before_anything_is_created(
    fabric: FlowFabric,
) -> None:
    @fabric.task
    async def send(to: str, at: Address) -> str:
        return to

    async with fabric.worker():
        for payload, told in (
            ({"at": {"street": "x"}}, "input.to: it is missing"),
            ({"to": "a", "at": {"street": 5}}, "input.at.street: expected string, got integer"),
        ):
            with pytest.raises(InvalidInput, match=told):
                await fabric.submit("send", payload)
        fine = {"to": "ada", "at": {"street": "x"}}
        assert await (await fabric.submit("send", fine)).result(timeout="30s") == "ada"
    # A kind that nobody has registered is not checked.
    await fabric.submit("later", {"any": "thing"})
