"""A server that turns calls away: callers wait for what passes, and nothing is done by halves."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest

from flowfabric.backend.valkey.connection import Login, connect
from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine import Engine
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.errors import ResourceExhausted, TransportFault
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import ClaimOrder
from tests.chaos.load import engine_at
from tests.chaos.valkey_load import be_patient, settings_for
from tests.clock import VirtualClock
from tests.conformance.driver import RETRIES, TRANSIENT, Driver, unfenced
from tests.conformance.graphs import FlowUnderTest, chain
from tests.conformance.limiting import new_budget
from tests.conformance.streaming import frame
from tests.valkey_server import ValkeyServer, await_server

ORDER = ClaimOrder(worker_id="w", worker_instance_id="w1", lanes=("default",), n=5)
ENDLESS = "while true do end"


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    started = ValkeyServer("--busy-reply-threshold", "10", "--enable-debug-command", "yes")
    yield started
    started.end()


@pytest.fixture
async def engine(server: ValkeyServer, clock: VirtualClock) -> AsyncIterator[Engine]:
    async with engine_at(settings_for(server), clock) as opened:
        yield opened


async def turned_away(server: ValkeyServer, word: str) -> None:
    """Wait until somebody was."""
    counted = f"errorstat_{word}:count=".encode()
    await asyncio.to_thread(
        await_server, lambda one: counted in one.run("INFO", "errorstats"), server
    )


async def test_a_server_without_its_replicas_is_waited_for(
    server: ValkeyServer, engine: Engine
) -> None:
    be_patient(engine)
    server.expect("CONFIG", "SET", "min-replicas-to-write", "1")
    submitting = asyncio.ensure_future(engine.executions.create(Submission(kind="k")))
    await turned_away(server, "NOREPLICAS")
    assert not submitting.done()
    server.expect("CONFIG", "SET", "min-replicas-to-write", "0")
    assert (await submitting).execution_id


async def test_a_server_that_is_busy_with_another_s_script_is_waited_for(
    server: ValkeyServer, engine: Engine
) -> None:
    be_patient(engine)
    blocking = asyncio.ensure_future(asyncio.to_thread(server.run, "EVAL", ENDLESS, "0"))
    await asyncio.to_thread(await_server, lambda one: one.run("GET", "x")[:5] == b"-BUSY", server)
    submitting = asyncio.ensure_future(engine.executions.create(Submission(kind="k")))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(submitting), 0.1)
    server.expect("SCRIPT", "KILL")
    await blocking
    assert (await submitting).execution_id


async def test_a_server_that_takes_no_more_clients_may_be_tried_again(
    server: ValkeyServer,
) -> None:
    server.expect("CONFIG", "SET", "maxclients", "1")
    with (
        socket.create_connection(("127.0.0.1", server.port)),
        pytest.raises(TransportFault, match="max number of clients"),
    ):
        await connect("127.0.0.1", server.port, Login())


# ---- memory that is used up


class Stage:
    """A store with something in every state a change needs."""

    def __init__(self, driver: Driver, held: LeaseProof, flow: FlowUnderTest, budget: str) -> None:
        self.driver = driver
        self.engine = driver.engine
        self.held = held
        self.flow = flow
        self.budget = budget


@pytest.fixture
async def stage(engine: Engine, clock: VirtualClock) -> Stage:
    driver = Driver(engine, clock, TimerSweep(engine))
    done = await driver.started(policy={"retention_ms": 1_000})
    await engine.outcomes.complete(done.proof, b"x")
    held = (await driver.started(policy=RETRIES)).proof
    await driver.submit()
    flow = await driver.graph(chain("a", "b"))
    return Stage(driver, held, flow, await new_budget(engine, hard={"tokens": 10}))


Change = Callable[[Stage], Coroutine[Any, Any, object]]
CHANGES: dict[str, Change] = {
    "submit": lambda on: on.driver.submit(input=b"x"),
    "submit a graph": lambda on: on.driver.graph(chain("c", "d")),
    "claim": lambda on: on.engine.claims.claim(ORDER),
    "take": lambda on: on.driver.take(on.flow.ids["a"]),
    "renew": lambda on: on.engine.leases.renew(on.held, 60_000),
    "complete": lambda on: on.engine.outcomes.complete(on.held, b"x"),
    "fail": lambda on: on.engine.outcomes.fail(on.held, TRANSIENT),
    "suspend": lambda on: on.driver.suspend(on.held),
    "cancel": lambda on: on.engine.outcomes.cancel(unfenced(on.flow.ids["a"]), "enough"),
    "cancel a flow": lambda on: on.engine.flow_operators.cancel_flow(on.flow.flow_id),
    "append": lambda on: on.engine.streams.append(on.held, 0, [frame(b"x")]),
    "spend": lambda on: on.engine.budgets.report_usage(on.budget, {"tokens": 1}),
    "configure": lambda on: on.engine.lanes.configure("default", "default", shards=8),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_full_server_refuses_a_change_before_it_begins(
    server: ValkeyServer, stage: Stage, change: str
) -> None:
    before = server.run("DEBUG", "DIGEST")
    server.expect("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(ResourceExhausted) as caught:
        await CHANGES[change](stage)
    assert caught.value.details == {"resource": "valkey_memory"}
    assert caught.value.detail.startswith(
        f"valkey_memory: valkey 127.0.0.1:{server.port} has reached its maxmemory"
    )
    assert server.run("DEBUG", "DIGEST") == before
    server.expect("CONFIG", "SET", "maxmemory", "0")
    await CHANGES[change](stage)
    assert await stage.engine.deps.store.backend.verify() == []


async def test_a_full_server_still_shows_what_it_has(server: ValkeyServer, stage: Stage) -> None:
    server.expect("CONFIG", "SET", "maxmemory", "1")
    driver = stage.driver
    assert (await driver.record(stage.held.execution_id)).state == "active"
    assert await driver.events()
    assert await driver.history(stage.held.execution_id)
    assert (await stage.flow.flow()).flow_id == stage.flow.flow_id


async def test_a_full_server_still_lets_go_of_what_is_past_its_time(
    server: ValkeyServer, stage: Stage, clock: VirtualClock
) -> None:
    clock.advance(2_000)
    server.expect("CONFIG", "SET", "maxmemory", "1")
    assert await stage.engine.deps.store.backend.purge(10) == 1
    server.expect("CONFIG", "SET", "maxmemory", "0")
    assert await stage.engine.deps.store.backend.verify() == []
