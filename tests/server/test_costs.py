"""The largest body of every operation costs little, holds up nobody, and grows in proportion.

The cases are made from the declarations: for every list and every map in a body, the body that is
as large as its route takes, with everything else as small as can be. Whether the engine refuses it
does not matter, what that costs does. Processor time is measured, the least of some runs: what else
the machine does only adds to it.
"""

import asyncio
import gc
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec import inspect as types

from flowfabric.config import Settings, StoreUrl
from flowfabric.operations.declaration import BODY_BYTES, Operation, plain_type
from flowfabric.operations.nouns import DECLARED
from flowfabric.operations.types import EXECUTION_PATTERN, UUID_PATTERN
from flowfabric.server import Http, booted
from tests.server.samples import path_value
from tests.work import cpu_ms

MOST_MS = 100
MOST_BLOCKED_MS = 50
MOST_PER_ITEM_MS = 0.3
MOST_GROWTH = 2.5
# Below this a measurement is mostly the way of the request.
NOISE_MS = 5
RUNS = 5
# Bodies of batches may be eight times as large: what those cost is reckoned from the growth.
LARGEST_BODY = 1024 * 1024
# Reading a body into values takes its time, whatever becomes of them: so many times that of reading
# it into plain values, which also tells how fast the machine is at the moment.
READINGS = 3
# One with a null is read, written without it, and read again.
READINGS_OF_NULLS = 8
# How deep a tree that contains itself is built.
DEPTH = 4

# The names of the members, and "[]" for the elements of one, down to the one that is made large.
Way = tuple[str, ...]


class Case(NamedTuple):
    # An `Operation`, which as an attribute would be taken for a method.
    operation: Any
    way: Way

    def __str__(self) -> str:
        return f"{self.operation.name}-{'.'.join(self.way)}"


def ways(kind: types.Type, depth: int = 0) -> Iterator[Way]:
    """Where the lists and maps of a type are."""
    if depth > 2 * DEPTH:
        return
    match kind:
        case types.UnionType():
            for one in kind.types:
                yield from ways(one, depth)
        case types.ListType() | types.VarTupleType() | types.SetType() | types.FrozenSetType():
            yield ("[]",)
            yield from (("[]", *rest) for rest in ways(kind.item_type, depth + 1))
        case types.DictType():
            yield ("{}",)
        case types.StructType():
            for field in kind.fields:
                yield from ((field.encode_name, *rest) for rest in ways(field.type, depth + 1))
        case types.Metadata():
            yield from ways(kind.type, depth)


def cases() -> Iterator[Case]:
    for operation in DECLARED:
        if operation.body is not None:
            found = dict.fromkeys(ways(types.type_info(operation.body)))
            yield from (Case(operation, way) for way in found)


class Maker:
    """Makes bodies of one case."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._count = count(1)

    def make(self, kind: types.Type, way: Way | None) -> Any:
        """The least value of a type, but for what lies on the way."""
        match kind:
            case types.Metadata():
                return self.make(kind.type, way)
            case types.UnionType():
                return self._one_of(kind, way)
            case types.StructType():
                return self._struct(kind, way)
            case types.ListType() | types.VarTupleType() | types.SetType() | types.FrozenSetType():
                least = max(kind.min_length or 0, 1 if way else 0)
                rest = way[1:] if way and len(way) > 1 else None
                number = self._number if way == ("[]",) else least
                return [self.make(kind.item_type, rest) for _ in range(number)]
            case types.DictType():
                number = self._number if way == ("{}",) else 0
                return {
                    f"a.k{next(self._count)}": self.make(kind.value_type, None)
                    for _ in range(number)
                }
            case _:
                return self._scalar(kind)

    def _one_of(self, kind: types.UnionType, way: Way | None) -> Any:
        if way is None:
            plain = [one for one in kind.types if not isinstance(one, types.NoneType)]
            return self.make(plain[0], None)
        for one in kind.types:
            if way in set(ways(one)):
                return self.make(one, way)
        raise AssertionError(f"no such way: {way}")

    def _struct(self, kind: types.StructType, way: Way | None) -> dict[str, Any]:
        own = way[0] if way else None
        made = {} if kind.tag_field is None else {kind.tag_field: kind.tag}
        for field in kind.fields:
            if field.encode_name == own:
                assert way is not None
                made[own] = self.make(field.type, way[1:])
            elif field.required:
                made[field.encode_name] = self.make(field.type, None)
        return made

    def _scalar(self, kind: types.Type) -> Any:
        match kind:
            case types.StrType():
                return self._text(kind.pattern)
            case types.IntType():
                return max(1, kind.ge or 1)
            case types.LiteralType():
                return kind.values[0]
            case types.BoolType():
                return False
            case types.FloatType():
                return 1.0
            case types.BytesType() | types.CustomType():
                return ""
            case _:
                return {}

    def _text(self, pattern: str | None) -> str:
        number = next(self._count)
        if pattern == UUID_PATTERN:
            return str(uuid.UUID(int=number))
        return (
            f"{{fp:86}}:{uuid.UUID(int=number)}" if pattern == EXECUTION_PATTERN else f"a.t{number}"
        )


def body_of(case: Case, number: int) -> bytes:
    return msgspec.json.encode(Maker(number).make(types.type_info(case.operation.body), case.way))


def with_a_null(case: Case, body: bytes) -> bytes:
    """The same with a null at its end, where a value is optional; empty if none is."""
    fields = msgspec.structs.fields(case.operation.body)
    for field in fields:
        takes_null = isinstance(types.type_info(field.type), types.UnionType | types.AnyType)
        is_free = not field.required and field.encode_name not in (case.way[0], "now")
        if is_free and not takes_null and plain_type(field.type) is not msgspec.Raw:
            return body[:-1] + b',"%b":null}' % field.encode_name.encode()
    return b""


def largest(case: Case) -> int:
    """How many elements fit into a body of the route; a little fewer, because numbers grow."""
    few, more = len(body_of(case, 100)), len(body_of(case, 200))
    each = (more - few) / 100 + 4
    return int((min(BODY_BYTES[case.operation.terms.size], LARGEST_BODY) - few) / each)


class Cost(NamedTuple):
    total_ms: float
    blocked_ms: float
    status: int

    def least(self, other: "Cost") -> "Cost":
        total, blocked = min(self.total_ms, other.total_ms), min(self.blocked_ms, other.blocked_ms)
        return Cost(total, blocked, self.status)


@contextmanager
def loop_steps() -> Iterator[list[float]]:
    """The processor time of every step of the event loop."""
    steps: list[float] = []
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        begin = time.thread_time()
        try:
            run(handle)
        finally:
            steps.append((time.thread_time() - begin) * 1_000)

    # A collection looks at all that other tests left behind; a server lets them come rarely.
    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio.Handle, "_run", timed)
            yield steps
    finally:
        gc.enable()


async def cost_of(application: Http, operation: Operation[..., Any], body: bytes) -> Cost:
    path = operation.path
    for name in operation.path_names:
        path = path.replace(f"{{{name}}}", path_value(name))
    scope = {
        "type": "http",
        "method": operation.method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [
            (b"host", b"127.0.0.1:9090"),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
        ],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 9090),
    }
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    with loop_steps() as steps:
        begin = time.thread_time()
        # A task of its own, so that its steps are those of the loop.
        await asyncio.ensure_future(application(scope, receive, send))
        total = (time.thread_time() - begin) * 1_000
    return Cost(total, max(steps), statuses[0])


@pytest.fixture
async def application() -> AsyncIterator[Http]:
    settings = Settings(store=StoreUrl("memory"))
    async with booted(settings) as application:
        yield application


@pytest.mark.parametrize("case", list(cases()), ids=str)
async def test_the_largest_body_costs_little_and_holds_up_nobody(
    application: Http, case: Case
) -> None:
    number = largest(case)
    whole, half = body_of(case, number), body_of(case, number // 2)
    # How much larger a body of this route may be.
    scale = BODY_BYTES[case.operation.terms.size] / len(whole)
    reading = cpu_ms(lambda: msgspec.json.decode(whole))
    most = max(MOST_MS / scale, READINGS * reading) + NOISE_MS
    most_blocked = max(MOST_BLOCKED_MS / scale, READINGS * reading) + NOISE_MS
    cost = await cost_of(application, case.operation, whole)
    if cost.status < 300:
        # What is accepted is worked on in slices of a fixed size.
        most, most_blocked = max(most, MOST_PER_ITEM_MS * number), MOST_BLOCKED_MS
    less = await cost_of(application, case.operation, half)
    for _ in range(RUNS):
        is_linear = cost.total_ms < MOST_GROWTH * less.total_ms + NOISE_MS
        if cost.total_ms < most and cost.blocked_ms < most_blocked and is_linear:
            break
        cost = cost.least(await cost_of(application, case.operation, whole))
        less = less.least(await cost_of(application, case.operation, half))
    assert cost.total_ms < most
    assert cost.blocked_ms < most_blocked
    assert cost.total_ms < MOST_GROWTH * less.total_ms + NOISE_MS


# One of each operation: all have their nulls taken out in the same way.
NULLABLE = {case.operation.name: case for case in cases() if with_a_null(case, b"{}")}


@pytest.mark.parametrize("case", NULLABLE.values(), ids=str)
async def test_a_null_in_the_largest_body_holds_up_nobody(application: Http, case: Case) -> None:
    body = with_a_null(case, body_of(case, largest(case)))
    reading = cpu_ms(lambda: msgspec.json.decode(body))
    most_blocked = max(MOST_BLOCKED_MS, READINGS_OF_NULLS * reading) + NOISE_MS
    cost = await cost_of(application, case.operation, body)
    for _ in range(RUNS):
        if cost.blocked_ms < most_blocked:
            break
        cost = cost.least(await cost_of(application, case.operation, body))
    assert cost.blocked_ms < most_blocked
