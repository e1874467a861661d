"""Keys that somebody damaged: a call that fails has changed nothing, and others go on."""

import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest

from flowfabric.backend.valkey.node import Node
from flowfabric.core.journal import JournalEntry
from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.errors import FlowFabricError
from tests.chaos.load import engine_at
from tests.chaos.valkey_load import settings_for
from tests.clock import VirtualClock
from tests.conformance.driver import PERMANENT, RETRIES, TRANSIENT, Driver
from tests.conformance.graphs import FlowUnderTest, chain
from tests.conformance.limiting import new_budget
from tests.conformance.streaming import frame
from tests.valkey_server import ValkeyServer


@pytest.fixture(scope="module")
def own_server() -> Iterator[ValkeyServer]:
    started = ValkeyServer("--enable-debug-command", "yes")
    yield started
    started.end()


class Stage:
    """A little of everything, which can be brought back as it was."""

    def __init__(self, driver: Driver, node: Node) -> None:
        self.driver = driver
        self.engine = driver.engine
        self.node = node
        self._dumps: dict[bytes, bytes] = {}

    async def set(self) -> None:
        driver = self.driver
        self.held: LeaseProof = (
            await driver.started(policy=RETRIES, tags={"app.team": "red"})
        ).proof
        await driver.submit()
        self.flow: FlowUnderTest = await driver.graph(chain("a", "b", "c"))
        self.member: LeaseProof = (await self.flow.take("a")).proof
        await self.engine.streams.append(self.held, 0, [frame(b"x")])
        await self.engine.journals.append(self.held, [JournalEntry("step", 0, "d", b"x")])
        self.budget = await new_budget(self.engine, hard={"tokens": 1_000})
        await self.spend()
        await self.engine.lanes.drain()
        keys = await self.node.run("KEYS", "ff:*")
        self._dumps = {key: await self.node.run("DUMP", key) for key in sorted(keys)}

    async def spend(self) -> object:
        return await self.engine.budgets.report_usage(self.budget, {"tokens": 1})

    async def restore(self) -> None:
        await self.node.run("FLUSHALL", "SYNC")
        for key, dump in self._dumps.items():
            await self.node.run("RESTORE", key, 0, dump)

    async def damages(self) -> AsyncIterator[bytes]:
        """Each key is of another kind, has unreadable values, or is gone, one at a time."""
        for key in self._dumps:
            for damage in (self._other_kind, self._unreadable, self._gone):
                await self.restore()
                await damage(key)
                yield key

    async def _other_kind(self, key: bytes) -> None:
        kind = await self.node.run("TYPE", key)
        await self.node.run("DEL", key)
        await self.node.run(*(("SET", key, "x") if kind == b"list" else ("LPUSH", key, "x")))

    async def _unreadable(self, key: bytes) -> None:
        if await self.node.run("TYPE", key) == b"hash":
            for field in await self.node.run("HKEYS", key):
                await self.node.run("HSET", key, field, b"\xc1")
        else:
            await self.node.run("SET", key, b"\xc1")

    async def _gone(self, key: bytes) -> None:
        await self.node.run("DEL", key)

    async def digest(self) -> bytes:
        digest: bytes = await self.node.run("DEBUG", "DIGEST")
        return digest


@pytest.fixture
async def stage(own_server: ValkeyServer, clock: VirtualClock) -> AsyncIterator[Stage]:
    own_server.clean()
    async with engine_at(settings_for(own_server), clock) as engine:
        (node,) = engine.deps.store.backend._topology.primaries()  # type: ignore[attr-defined]
        stage = Stage(Driver(engine, clock, TimerSweep(engine)), node)
        await stage.set()
        yield stage


Call = Callable[[Stage], Coroutine[Any, Any, object]]
CALLS: dict[str, Call] = {
    "submit": lambda on: on.driver.submit(),
    "submit a graph": lambda on: on.driver.graph(chain("x", "y")),
    "claim": lambda on: on.driver.claim_all(n=5),
    "complete": lambda on: on.engine.outcomes.complete(on.held, b"r"),
    "fail": lambda on: on.engine.outcomes.fail(on.held, TRANSIENT),
    "suspend": lambda on: on.driver.suspend(on.held),
    "complete a member": lambda on: on.engine.outcomes.complete(on.member, b"r"),
    "fail a member": lambda on: on.engine.outcomes.fail(on.member, PERMANENT),
    "append": lambda on: on.engine.streams.append(on.held, 0, [frame(b"y")]),
    "journal": lambda on: on.engine.journals.append(on.held, [JournalEntry("s", 0, "d", b"x")]),
    "spend": lambda on: on.spend(),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_that_fails_has_changed_nothing(stage: Stage, call: str) -> None:
    async for key in stage.damages():
        before = await stage.digest()
        try:
            await CALLS[call](stage)
        except FlowFabricError:
            assert await stage.digest() == before, key


async def test_an_unreadable_record_keeps_nobody_from_being_claimed(stage: Stage) -> None:
    first = await stage.driver.submit(priority=9)
    second = await stage.driver.submit(priority=8)
    await stage.node.run("HSET", f"ff:x:{first}", "r", b"\xc1")
    assert [one.execution_id for one in await stage.driver.claim_all(n=1)] == [second]


async def test_a_damaged_view_is_told_and_the_work_is_done(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    own = stage.held.execution_id
    timers = "ff:v:{fp:0}:timers"
    await stage.node.run("SET", timers, "x")
    with caplog.at_level(logging.ERROR, "flowfabric.backend.valkey"):
        await stage.engine.outcomes.complete(stage.held, b"r")
    assert (await stage.driver.record(own)).state == "completed"
    (told,) = caplog.messages
    assert "the store is damaged" in told
    assert "WRONGTYPE" in told
    backend: Any = stage.engine.deps.store.backend
    await backend.repair()
    assert await backend.verify() == []
