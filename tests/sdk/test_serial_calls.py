"""How often a handler that waits or has children asks its store, counted at the store itself."""

from collections import Counter
from collections.abc import AsyncIterator
from typing import cast

import pytest

from flowfabric import Context, FlowFabric
from flowfabric.app import backend_of
from flowfabric.backend.base import Backend
from flowfabric.config import Settings, parse_store_url
from flowfabric.engine import engine_on
from flowfabric.fabric.connection import Connection, connection_on
from flowfabric.operations.signals import Approval
from tests.conformance.limiting import Watched
from tests.sdk.backends import SETTINGS
from tests.sdk.until import reaches

# What is asked whether a handler waits or not.
BESIDES = {"register", "leave", "heartbeat", "config_get", "workers"}
# A look for work that finds none, and the first look of who awaits the result.
AT_ANY_TIME = ["claim", "read"]


@pytest.fixture
async def store() -> AsyncIterator[Watched]:
    backend = backend_of(Settings(store=parse_store_url("memory://")))
    await backend.prepare()
    yield Watched(backend)
    await backend.close()


@pytest.fixture
async def fabric(store: Watched) -> AsyncIterator[FlowFabric]:
    engine = engine_on(cast(Backend, store))
    await engine.keys.boot(SETTINGS.waitpoint_secret)
    connection = connection_on(engine)

    async def connect() -> Connection:
        return connection

    async with FlowFabric.over(connect) as opened:
        yield opened


def asked(store: Watched) -> Counter[str]:
    return Counter(one for one in store.calls if one not in BESIDES)


async def test_a_gathering_parent_asks_for_the_flow_of_its_children_once(
    fabric: FlowFabric, store: Watched
) -> None:
    @fabric.task()
    async def child(n: int) -> int:
        return n

    @fabric.task()
    async def parent(ctx: Context) -> list[int]:
        return await ctx.gather(*(child.bind(n) for n in range(20)))

    async with fabric.worker(concurrency=1):
        run = await parent.submit()
        store.calls.clear()
        assert await run.result(timeout="10s") == [*range(20)]
    found = asked(store)
    one_each = {"apply_flows", "create", "journal", "journal_read"}
    assert {name: found[name] for name in one_each} == dict.fromkeys(one_each, 1)
    assert found["read"] <= 7


async def test_a_wait_for_mail_is_over_after_few_calls(fabric: FlowFabric, store: Watched) -> None:
    @fabric.task()
    async def waiting(ctx: Context) -> str:
        signal = await ctx.wait_for("go")
        assert signal is not None
        return str(signal.payload)

    async with fabric.worker(concurrency=1):
        run = await waiting.submit()
        await reaches(fabric, run, "suspended")
        store.calls.clear()
        await run.signal("go", "now")
        assert await run.result(timeout="10s") == "now"
    sent, done = ["read", "apply"], ["claim", "journal", "apply", "read"]
    assert asked(store) <= Counter([*sent, *done, *AT_ANY_TIME])


async def test_an_approval_is_over_after_five_calls(fabric: FlowFabric, store: Watched) -> None:
    """Its answer is journaled with the end of the attempt."""

    @fabric.task()
    async def waiting(ctx: Context) -> bool:
        return bool(await ctx.approve("go on?"))

    async with fabric.worker(concurrency=1):
        run = await waiting.submit()
        await reaches(fabric, run, "suspended")
        port = await fabric.submitter()
        (waitpoint,) = await port.waitpoints(run.id)
        yes = Approval(signal_name="approved", source_identity="ann")
        store.calls.clear()
        await port.approve(run.id, waitpoint.waitpoint_id, yes)
        assert await run.result(timeout="10s") is True
    sent, done = ["read", "apply"], ["claim", "apply", "read"]
    assert asked(store) <= Counter([*sent, *done, *AT_ANY_TIME])
    (entry,) = (await fabric.admin.journal(run.id)).items
    assert (entry.name, entry.seq) == ("ff.approve", 1)
