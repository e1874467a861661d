"""How items are sent: at once, together, and never held up by a batch that takes long."""

import asyncio
from typing import Any

import pytest

from flowfabric.core.journal import JournalEntry
from flowfabric.errors import Conflict, Unreachable
from flowfabric.operations.attempts import HeldAttempts, NewEntry, NewFrame, Output
from flowfabric.operations.declaration import Call, Operation
from flowfabric.operations.executions import Executions, Submission
from flowfabric.operations.workers import Workers
from flowfabric.worker import batching as batching_module
from flowfabric.worker.batching import MOST_ITEMS, Batching, gathered

SOON_S = 30.0


class Engine:
    """Takes reports, and answers them when it is told to."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.came = asyncio.Event()
        self._answers: list[asyncio.Event] = []

    async def report(self, batch: list[Any]) -> None:
        self.batches.append(batch)
        answer = asyncio.Event()
        self._answers.append(answer)
        self.came.set()
        await answer.wait()

    def answer(self) -> None:
        self._answers.pop(0).set()

    async def reports(self, n: int) -> None:
        async with asyncio.timeout(SOON_S):
            while len(self.batches) < n:
                self.came.clear()
                await self.came.wait()


def put(batching: Batching[Any], *items: object) -> None:
    for item in items:
        batching.put(item)


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
async def batching(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Batching[Any]:
    monkeypatch.setattr(batching_module, "_LATEST_S", 600.0)
    return Batching(engine.report)


async def test_what_is_put_in_one_turn_is_sent_together_and_at_once(
    engine: Engine, batching: Batching[Any]
) -> None:
    put(batching, 1, 2, 3)
    await engine.reports(1)
    assert engine.batches == [[1, 2, 3]]


async def test_a_few_wait_for_the_batch_that_is_in_flight(
    engine: Engine, batching: Batching[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching_module, "_LATEST_S", 600.0)
    put(batching, 1)
    await engine.reports(1)
    put(batching, 2)
    await asyncio.sleep(0)
    put(batching, 3)
    await asyncio.sleep(0)
    assert engine.batches == [[1]]
    engine.answer()
    await engine.reports(2)
    assert engine.batches == [[1], [2, 3]]


async def test_many_are_sent_beside_the_batch_that_is_in_flight(
    engine: Engine, batching: Batching[Any]
) -> None:
    put(batching, 0)
    await engine.reports(1)
    put(batching, *range(MOST_ITEMS + 5))
    await engine.reports(2)
    assert engine.batches[1] == [*range(MOST_ITEMS)]
    engine.answer()
    engine.answer()
    await engine.reports(3)
    assert engine.batches[2] == [*range(MOST_ITEMS, MOST_ITEMS + 5)]


async def test_a_batch_that_takes_long_holds_nothing_up(
    engine: Engine, batching: Batching[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching_module, "_LATEST_S", 0.001)
    put(batching, 1)
    await engine.reports(1)
    put(batching, 2)
    await engine.reports(2)
    put(batching, 3)
    await engine.reports(3)
    assert engine.batches == [[1], [2], [3]]


async def test_only_so_many_batches_are_in_flight(engine: Engine, batching: Batching[Any]) -> None:
    most = batching_module._MOST_IN_FLIGHT
    put(batching, *range((most + 1) * MOST_ITEMS))
    await engine.reports(most)
    await asyncio.sleep(0)
    assert len(batching.in_flight) == len(engine.batches) == most
    engine.answer()
    await engine.reports(most + 1)


# ---- calls that share requests


class Server:
    """A transport that notes the batches of each operation."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[Any]]] = []
        self.fault: Exception | None = None
        # To submissions of a kind, if not its name.
        self.answers: dict[str, Any] = {}

    def bind(self, declared: Operation[..., Any]) -> Call:
        async def ask(items: list[Any]) -> list[Any]:
            self.asked.append((declared.name, items))
            if self.fault is not None:
                raise self.fault
            return [self._answer(one) for one in items]

        return ask

    def _answer(self, item: Any) -> Any:
        match item:
            case NewEntry():
                return item.entry.outcome
            case Submission():
                return self.answers.get(item.kind, item.kind)
        return b""


def frame(seq: int) -> NewFrame:
    return NewFrame(frame_type="stdout", payload=b"x", seq=seq)


def step(name: str) -> NewEntry:
    return NewEntry(execution_id="{fp:1}:x", entry=JournalEntry(name, 1, "", name.encode()))


async def test_what_attempts_record_together_is_one_request() -> None:
    server = Server()
    append = gathered(server.bind)(HeldAttempts.append_journal)
    first, second = await asyncio.gather(append([step("a")]), append([step("b"), step("c")]))
    assert (first, second) == ([b"a"], [b"b", b"c"])
    assert server.asked == [("append_journal", [step("a"), step("b"), step("c")])]


async def test_a_request_that_fails_fails_for_all_that_share_it() -> None:
    server = Server()
    server.fault = Unreachable("gone")
    append = gathered(server.bind)(HeldAttempts.append_journal)
    first, second = await asyncio.gather(
        append([step("a")]), append([step("b")]), return_exceptions=True
    )
    assert first is second is server.fault


async def test_who_gives_up_takes_no_answer_from_the_others() -> None:
    server = Server()
    append = gathered(server.bind)(HeldAttempts.append_journal)
    leaving = asyncio.ensure_future(append([step("a")]))
    staying = asyncio.ensure_future(append([step("b")]))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == [b"b"]


async def test_what_may_not_be_sent_twice_goes_by_itself() -> None:
    server = Server()
    append = gathered(server.bind)(HeldAttempts.append_frames)
    safe = Output(execution_id="{fp:1}:x", attempt_index=0, frames=[frame(1)])
    unsafe = Output(execution_id="{fp:1}:x", attempt_index=0, frames=[frame(0)])
    await asyncio.gather(append([safe]), append([unsafe]), append([safe]))
    assert server.asked == [("append_frames", [safe, safe]), ("append_frames", [unsafe])]


async def test_what_attempts_submit_together_is_one_request() -> None:
    server = Server()
    server.answers["b"] = Conflict("taken")
    submit = gathered(server.bind)(Executions.submit)
    new = [Submission(kind=one, idempotency_key=one) for one in "abc"]
    found = await asyncio.gather(*map(submit, new), return_exceptions=True)
    assert found == ["a", server.answers["b"], "c"]
    assert server.asked == [("submit_many", new)]


async def test_other_operations_are_not_touched() -> None:
    server = Server()
    ask = server.bind(Workers.renew)
    assert gathered(lambda declared: ask)(Workers.renew) is ask
