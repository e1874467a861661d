"""Background tasks that fail: duty loops and the listeners of notifications start again."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from itertools import pairwise

import pytest

from flowfabric.app import close_engine, open_engine
from flowfabric.backend.base import StoreCounters
from flowfabric.backend.types import EventFilter, EventPage
from flowfabric.backend.valkey.cluster.notifier import ClusterNotifier
from flowfabric.backend.valkey.connection import Connection, Login, OnPush
from flowfabric.backend.valkey.node import Node
from flowfabric.backend.valkey.notifier import StoreNotifier, ValkeyNotifier
from flowfabric.config import Settings, StoreUrl
from flowfabric.core.ids import PartitionCounts
from flowfabric.duties.loop import Duties, DutyLoop
from flowfabric.duties.result import DutyResult
from flowfabric.operations.events import CompletionEvent
from flowfabric.operations.executions import Executions, Submission
from tests.jumping_loop import run_jumping


class _Attempts:
    """Counts what begins, in virtual time, and fails."""

    def __init__(self) -> None:
        self.begun_at: list[float] = []
        self.are_enough = asyncio.Event()

    def fail(self) -> None:
        self.begun_at.append(asyncio.get_running_loop().time())
        if len(self.begun_at) == 3:
            self.are_enough.set()
        raise RuntimeError("a mistake")


class _FailingNode(Node):
    def __init__(self, attempts: _Attempts) -> None:
        super().__init__("127.0.0.1", 1, Login())
        self._attempts = attempts

    async def connect(self, on_push: OnPush | None = None) -> Connection:
        self._attempts.fail()
        raise AssertionError


class _OneNode:
    """As much of a cluster as its notifier needs."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def watch(self, on_change: Callable[[], None]) -> None:
        """Never changes."""

    def primaries(self) -> list[Node]:
        return [self._node]


def _of_a_server(node: Node) -> StoreNotifier:
    return ValkeyNotifier(node, StoreCounters())


def _of_a_cluster(node: Node) -> StoreNotifier:
    return ClusterNotifier(_OneNode(node), PartitionCounts(), StoreCounters())  # type: ignore[arg-type]


@pytest.mark.parametrize("notifier_of", [_of_a_server, _of_a_cluster])
def test_a_listener_that_fails_starts_again_after_five_seconds(
    notifier_of: Callable[[Node], StoreNotifier], caplog: pytest.LogCaptureFixture
) -> None:
    async def begun_at() -> list[float]:
        attempts = _Attempts()
        notifier = notifier_of(_FailingNode(attempts))
        notifier.start()
        await attempts.are_enough.wait()
        assert notifier.is_disconnected
        await notifier.close()
        return attempts.begun_at

    assert run_jumping(begun_at()) == [0, 5, 10]
    assert "restart 2 follows" in caplog.text


class _Failing:
    name = "failing"

    def __init__(self, attempts: _Attempts) -> None:
        self._attempts = attempts

    async def visit(self) -> DutyResult:
        self._attempts.fail()
        raise AssertionError


class _Sound:
    name = "sound"

    def __init__(self) -> None:
        self.visits = 0

    async def visit(self) -> DutyResult:
        self.visits += 1
        return DutyResult()


def test_a_duty_that_fails_starts_again_after_five_seconds_and_disturbs_no_other() -> None:
    async def main() -> tuple[list[float], int]:
        attempts, sound = _Attempts(), _Sound()
        duties = Duties([DutyLoop(_Failing(attempts), 1), DutyLoop(sound, 1)])
        duties.start()
        await attempts.are_enough.wait()
        assert await duties.stop()
        return attempts.begun_at, sound.visits

    begun_at, visits = run_jumping(main())
    first = begun_at[0]
    assert first < 1
    assert begun_at == pytest.approx([first, first + 5, first + 10])
    assert visits >= 10


def test_a_reader_of_the_log_that_fails_starts_again_and_its_followers_miss_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> list[str]:
        engine = await open_engine(Settings(store=StoreUrl("memory")))
        backend, submitted = engine.deps.store.backend, list[str]()
        events, reader_reads = backend.events, list[float]()

        async def broken_once(cursor: bytes, wanted: EventFilter, limit: int) -> EventPage:
            if not wanted.families:
                reader_reads.append(asyncio.get_running_loop().time())
                if len(reader_reads) == 1:
                    raise RuntimeError("a mistake")
            return await events(cursor, wanted, limit)

        monkeypatch.setattr(backend, "events", broken_once)
        subscription = await engine.events.subscribe({"completion"})
        async with aclosing(subscription):
            told = list[str]()
            for _ in range(3):
                following = asyncio.ensure_future(anext(subscription))
                await asyncio.sleep(1)
                made = await engine.executions.create(Submission(kind="k"))
                await engine.use_case(Executions.cancel)(made.execution_id, "")
                submitted.append(made.execution_id)
                event = await following
                assert isinstance(event, CompletionEvent)
                told.append(event.execution_id)
                await asyncio.sleep(4)
        assert told == submitted
        await close_engine(engine)
        return [f"{after - before:g}" for before, after in pairwise(reader_reads[:2])]

    # It starts again five seconds later.
    assert run_jumping(main()) == ["5"]
    assert "the reader of the log ended unexpectedly; restart 1 follows" in caplog.text
