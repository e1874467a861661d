"""Notifications cost little: one for each transaction, and none while no other process listens."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from flowfabric.app import open_engine
from flowfabric.engine import Engine
from flowfabric.operations.executions import Submission
from tests.integration.sharer import settings_for
from tests.postgres_server import shared_postgres
from tests.stores import url_of

CHANNEL = "flowfabric_flowfabric"
LANE = "lane:default:default"
END = "that was all"


class Observer:
    """Hears every notification, and does not say that it listens."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        connection.execute(f'LISTEN "{CHANNEL}"'.encode())

    def heard(self) -> list[list[str]]:
        """The topics of each notification so far: they come in the order of the commits."""
        shared_postgres().run(f"SELECT pg_notify('{CHANNEL}', '{END}')")
        found: list[list[str]] = []
        for notification in self._connection.notifies():
            if notification.payload == END:
                break
            found.append(notification.payload.split("\n")[1:])
        return found


@asynccontextmanager
async def observed(url: str, stores: int) -> AsyncIterator[tuple[list[Engine], Observer]]:
    async with AsyncExitStack() as stack:
        engines = []
        for _ in range(stores):
            engine = await open_engine(settings_for(url))
            stack.push_async_callback(engine.deps.store.backend.close)
            stack.push_async_callback(engine.close)
            # The first execution also makes its lane known.
            await engine.executions.create(Submission(kind="first"))
            engines.append(engine)
        connection = psycopg.connect(shared_postgres().address, autocommit=True)
        yield engines, Observer(stack.enter_context(connection))


async def submit_together(engine: Engine) -> None:
    """In one transaction."""
    await engine.executions.create_many([Submission(kind=f"k{n}") for n in range(8)])


async def test_nobody_is_told_while_nobody_listens(tmp_path: Path) -> None:
    async with observed(url_of("postgres", tmp_path), 1) as ((engine,), observer):
        await submit_together(engine)
        assert observer.heard() == []
        # Waiting in the same process needs no notification either.
        with closing(engine.deps.store.backend.notifier().subscribe(LANE)) as subscription:
            await subscription.wait_subscribed(10)
            await submit_together(engine)
            assert observer.heard() == []


async def test_a_transaction_is_told_once_with_all_its_topics(tmp_path: Path) -> None:
    async with observed(url_of("postgres", tmp_path), 2) as ((one, other), observer):
        with closing(other.deps.store.backend.notifier().subscribe(LANE)) as subscription:
            await subscription.wait_subscribed(10)
            await submit_together(one)
            (topics,) = observer.heard()
            assert {topic for topic in topics if topic.startswith(LANE)}
            assert await subscription.wait(10)


@pytest.mark.parametrize("option", ["notify=off", "pooler=transaction"])
async def test_without_notifications_nobody_listens_and_nobody_is_told(
    option: str, tmp_path: Path
) -> None:
    url = f"{url_of('postgres', tmp_path)}?{option}"
    async with observed(url, 2) as ((one, other), observer):
        with closing(other.deps.store.backend.notifier().subscribe(LANE)):
            await submit_together(one)
            assert observer.heard() == []
        assert shared_postgres().run("SELECT count(*) FROM flowfabric.listener") == [(0,)]
