"""Background tasks that fail: duty loops and the listeners of notifications start again."""

import asyncio
from collections.abc import Callable

import pytest

from flowfabric.backend.base import StoreCounters
from flowfabric.backend.valkey.cluster.notifier import ClusterNotifier
from flowfabric.backend.valkey.connection import Connection, Login, OnPush
from flowfabric.backend.valkey.node import Node
from flowfabric.backend.valkey.notifier import StoreNotifier, ValkeyNotifier
from flowfabric.core.ids import PartitionCounts
from flowfabric.duties.loop import Duties, DutyLoop
from flowfabric.duties.result import DutyResult
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
