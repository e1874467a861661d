"""Exceptions as data, and exceptions made from data."""

import asyncio
import sys
import types
from collections.abc import Sequence
from typing import cast

import msgspec
import pytest

from flowfabric.errors import BudgetExceeded, NonRetryable, StepFailed
from flowfabric.operations.attempts import Kept, NewEntry
from flowfabric.operations.workers import Claim
from flowfabric.worker.calls import WorkerCalls
from flowfabric.worker.failures import (
    FailureRecord,
    cancelled_record,
    read_failure,
    rebuilt,
    record_of,
    retryable_of,
)
from flowfabric.worker.session import Recorded, Session


class Coded(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code
        self.unkept = object()


class Strange(ValueError):
    asked = 0

    def __str__(self) -> str:
        Strange.asked += 1
        return f"asked {Strange.asked} times"


def stored(fault: Exception) -> FailureRecord:
    """As the journal gives it back."""
    return read_failure(msgspec.json.encode(record_of(fault, "call()")))


@pytest.mark.parametrize(
    "fault",
    [
        ValueError("bad"),
        KeyError("key"),
        OSError(2, "No such file", "name"),
        TimeoutError(),
        BudgetExceeded("over", budget_id="b"),
        NonRetryable("never"),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_an_equal_exception_is_made(fault: Exception) -> None:
    again = rebuilt(stored(fault))
    assert type(again) is type(fault)
    assert (str(again), again.args) == (str(fault), fault.args)
    assert vars(again) == vars(fault)


def test_attributes_that_json_keeps_come_back() -> None:
    again = rebuilt(stored(Coded(7)))
    assert isinstance(again, Coded)
    assert (again.code, str(again)) == (7, "code 7")
    assert not hasattr(again, "unkept")


def test_an_exception_of_many_arguments_is_caught_by_its_base() -> None:
    fault = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid")
    again = rebuilt(stored(fault))
    assert isinstance(again, StepFailed)
    assert isinstance(again, ValueError)
    assert (again.type, again.message) == ("UnicodeDecodeError", str(fault))


def test_an_exception_with_another_text_each_time_becomes_step_failed() -> None:
    again = rebuilt(stored(Strange("x")))
    assert isinstance(again, StepFailed)
    assert isinstance(again, ValueError)


@pytest.mark.parametrize(
    "name",
    ["os:system", "builtins:eval", "flowfabric:FlowFabric", "nowhere.at.all:Fault", "builtins:int"],
)
def test_names_that_are_no_exception_become_step_failed(name: str) -> None:
    before = set(sys.modules)
    again = rebuilt(FailureRecord("call", name, ("builtins:Exception",), ["true"], {}, "text"))
    assert type(again) is StepFailed
    assert again.message == "text"
    assert set(sys.modules) == before


def test_no_module_is_asked_for_what_it_loads_late() -> None:
    module = types.ModuleType("late_module")
    asked: list[str] = []
    module.__getattr__ = asked.append  # type: ignore[method-assign]
    sys.modules["late_module"] = module
    try:
        rebuilt(FailureRecord("call", "late_module:Fault", (), [], {}, "text"))
    finally:
        del sys.modules["late_module"]
    assert asked == []


def test_a_group_keeps_its_members() -> None:
    group = ExceptionGroup("two", [ValueError("a"), ExceptionGroup("in", [Coded(1)])])
    again = rebuilt(stored(group))
    assert isinstance(again, ExceptionGroup)
    assert repr(again) == repr(group)


@pytest.mark.parametrize("size", [32, 33])
def test_a_group_has_a_largest_size(size: int) -> None:
    group = ExceptionGroup("many", [ValueError(str(n)) for n in range(size)])
    assert isinstance(rebuilt(stored(group)), ExceptionGroup) == (size == 32)


@pytest.mark.parametrize("depth", [4, 5])
def test_a_group_has_a_largest_depth(depth: int) -> None:
    group: ExceptionGroup[Exception] = ExceptionGroup("deepest", [ValueError("x")])
    for _ in range(depth - 1):
        group = ExceptionGroup("deeper", [group])
    assert isinstance(rebuilt(stored(group)), ExceptionGroup) == (depth == 4)


def test_a_record_is_bounded() -> None:
    record = stored(ValueError("x" * 100_000))
    assert len(msgspec.json.encode(record)) < 24 * 1024
    again = rebuilt(record)
    assert isinstance(again, ValueError)
    assert len(str(again)) < 5_000


def test_a_cancelled_call_stays_cancelled() -> None:
    assert isinstance(rebuilt(cancelled_record("call", 0)), asyncio.CancelledError)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (ValueError(), None),
        (NonRetryable("no"), False),
        (BudgetExceeded("over"), None),
        (StepFailed("E: m", retryable=False), False),
        (StepFailed("E: m"), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_an_exception_says_about_retries(fault: Exception, says: bool | None) -> None:
    assert retryable_of(fault) is says


async def test_answers_are_appended_together_and_once() -> None:
    appended: list[list[str]] = []

    class Calls:
        async def append_journal(self, items: Sequence[NewEntry]) -> list[Kept]:
            await asyncio.sleep(0)
            appended.append([one.entry.name for one in items])
            return [Kept(True) for _ in items]

    claim = Claim(
        execution_id="e",
        lease_id="l",
        lease_epoch=1,
        attempt_id="a",
        attempt_index=0,
        attempt_type="initial",
        lease_expires_at=0,
        namespace="n",
        lane_id="l",
        priority=0,
        execution_kind="k",
        claimed_at=0,
        created_at=0,
        tags={},
        retry_count=0,
        journal_length=0,
    )
    session = Session(claim, cast(WorkerCalls, Calls()))
    failures = session.step_failures
    one = failures.keep("one", 1, "d", record_of(ValueError("1"), "one"))
    session.record_later(session.next_key("ff.now"), "d", Recorded("now()"))
    failures.keep("two", 1, "d", record_of(ValueError("2"), "two"))
    assert failures.recorded_in(one) is None
    await asyncio.gather(session.begin_effect(), session.begin_effect())
    assert appended == [["ff.failed one", "ff.now", "ff.failed two"]]
    outer = RuntimeError("outer")
    outer.__cause__ = BaseExceptionGroup("in", [ValueError("other"), one])
    assert failures.recorded_in(outer) is not None
    assert failures.recorded_in(ValueError("1")) is None
