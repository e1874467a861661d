"""Three processes work on the same flows, lane, tree of budgets and gate of one database."""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from flowfabric.app import open_engine
from flowfabric.engine import Engine
from flowfabric.operations.executions import Submission
from tests.chaos.load import completions
from tests.chaos.processes import REPOSITORY
from tests.conformance.graphs import FlowUnderTest, Graph, chain, create
from tests.conformance.limiting import new_budget, new_quota, usage
from tests.integration.sharer import GATED, MOST_AT_ONCE, REPORTS, settings_for
from tests.postgres_server import shared_postgres
from tests.stores import url_of

PROCESSES = 3
ALONE = 40
BEHIND_A_GATE = 20
LIMIT = 1_000_000
# Many times what sharing all the work takes.
LONGEST_S = 60
LOCK = "SELECT n FROM crossed WHERE n = %s FOR UPDATE"


def wide(width: int) -> Graph:
    names = [f"m{n}" for n in range(width)]
    return Graph(arrows=[arrow for name in names for arrow in (("start", name), (name, "end"))])


class Work(NamedTuple):
    """What the processes share."""

    engine: Engine
    flows: list[FlowUnderTest]
    root: str
    budgets: list[str]
    alone: list[str]

    @property
    def ids(self) -> list[str]:
        return [*self.alone, *(one for flow in self.flows for one in flow.ids.values())]


@asynccontextmanager
async def shared_work(url: str) -> AsyncIterator[Work]:
    engine = await open_engine(settings_for(url))
    graphs = [wide(6), chain("a", "b", "c", "d"), wide(40), wide(6), chain("a", "b")]
    flows = [await create(engine, graph) for graph in graphs]
    root = await new_budget(engine, {"usd": LIMIT})
    budgets = [await new_budget(engine, {"usd": LIMIT}, parent_id=root) for _ in range(2)]
    quota = await new_quota(engine, cap=MOST_AT_ONCE)
    gated = {"quota_ids": [quota]}
    submissions = [
        *(Submission(kind="alone") for _ in range(ALONE)),
        *(Submission(kind=GATED, policy=gated) for _ in range(BEHIND_A_GATE)),
    ]
    created = await asyncio.gather(*map(engine.executions.create, submissions))
    yield Work(engine, flows, root, budgets, [one.execution_id for one in created])
    await engine.close()
    await engine.deps.store.backend.close()


async def share(url: str, work: Work, running: Path, without: str = "") -> list[list[str]]:
    """Let the processes do the work; what they said, in words."""
    running.mkdir(exist_ok=True)
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.integration.sharer"),
            *(url, f"sharer-{number}", str(running), ",".join([work.root, *work.budgets])),
            without,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=REPOSITORY,
        )
        for number in range(PROCESSES)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
        told = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
        assert [process.returncode for process in processes] == [0] * PROCESSES
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.communicate()
    return [line.split() for said, _ in told for line in said.decode().splitlines()]


async def wrongs(work: Work, said: list[list[str]]) -> list[str]:
    """What is not as it should be after all the work was shared."""
    told = [("failed", words[1]) for words in said if words[0] == "failed"]
    done = Counter(words[1] for words in said if words[0] == "done")
    beside = max((int(words[1]) for words in said if words[0] == "beside"), default=0)
    counts = [(await flow.flow()).counts for flow in work.flows]
    spent = await usage(work.engine, work.root)
    backend = work.engine.deps.store.backend
    checks = {
        "a call failed": told == [],
        "each ends once": done == Counter(work.ids),
        "flows are whole": [one.get("completed") for one in counts]
        == [len(flow.ids) for flow in work.flows],
        "all spending counts": spent == {"usd": PROCESSES * REPORTS},
        "a gate admits no more": beside <= MOST_AT_ONCE,
        "a gate admits somebody": beside > 0,
        "the log tells of each end once": await completions(work.engine) == Counter(work.ids),
        "verify finds nothing": await backend.verify() == [],
    }
    return [name for name, is_right in checks.items() if not is_right]


def deadlocks() -> int:
    """Counted by each connection, and added up when it ends."""
    shared_postgres().await_no_others()
    statement = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    ((found,),) = shared_postgres().run(statement)
    return int(found)


async def test_three_processes_share_everything_and_nothing_is_doubled(tmp_path: Path) -> None:
    url = url_of("postgres", tmp_path)
    before = deadlocks()
    async with shared_work(url) as work:
        said = await share(url, work, tmp_path / "running")
        assert await wrongs(work, said) == []
        ended = {words[1] for words in said if words[0] == "done"}
        assert len(ended) == len(work.ids)
    assert deadlocks() == before


def await_both(other: psycopg.Connection[Any], crossing: Future[Any]) -> None:
    """Either of them may be the one that is sacrificed."""
    try:
        other.execute(LOCK, (1,))
    finally:
        other.rollback()
    crossing.result()


def test_a_deadlock_would_be_counted(tmp_path: Path) -> None:
    url_of("postgres", tmp_path)
    before, server = deadlocks(), shared_postgres()
    server.run("CREATE TABLE IF NOT EXISTS crossed (n int PRIMARY KEY)")
    server.run("INSERT INTO crossed VALUES (1), (2) ON CONFLICT DO NOTHING")
    with (
        psycopg.connect(server.address) as one,
        psycopg.connect(server.address) as other,
        ThreadPoolExecutor(1) as thread,
    ):
        one.execute(LOCK, (1,))
        other.execute(LOCK, (2,))
        crossing = thread.submit(one.execute, LOCK, (2,))
        with pytest.raises(psycopg.errors.DeadlockDetected):
            await_both(other, crossing)
    assert deadlocks() == before + 1


@pytest.mark.parametrize(
    ("without", "expected"),
    [
        ("flow", {"flows are whole", "verify finds nothing", "each ends once"}),
        ("budget", {"all spending counts"}),
        ("gate", {"a gate admits no more", "verify finds nothing"}),
        ("exec", {"each ends once", "a call failed"}),
    ],
)
async def test_without_its_locks_a_root_is_damaged(
    without: str, expected: set[str], tmp_path: Path
) -> None:
    """The test above can fail: it does when the rows of one table are not locked."""
    for number in range(5):
        url = url_of("postgres", tmp_path)
        async with shared_work(url) as work:
            try:
                async with asyncio.timeout(LONGEST_S):
                    said = await share(url, work, tmp_path / f"running{number}", without)
            except TimeoutError:
                # What was damaged is waited for and never ends.
                return
            if expected & set(await wrongs(work, said)):
                return
    pytest.fail(f"nothing was damaged without the locks of {without}")
