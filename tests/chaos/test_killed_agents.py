"""The worker of the agent example is killed at random points, and nothing is thought twice."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from examples.agent import THOUGHTS, declare
from flowfabric import FlowFabric, Frame, Run, Task
from flowfabric.core.plan import Family
from flowfabric.operations.events import EventScope, LeaseEvent
from tests.chaos.agent_worker import fabric_at, noting_model
from tests.chaos.homes import HOMES, home
from tests.chaos.processes import check_store, worker_process

ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "10"))
AGENTS_A_ROUND = 3
# About as many places to be killed at as a round's agents have on their way.
PLACES = 160
LEASES: tuple[Family, ...] = ("lease",)
LENGTHS = {topic: len(text.split()) for topic, text in THOUGHTS.items()}
# Of one agent: topic -> the call of the model whose words were recorded.
Recorded = dict[str, str]


async def review(fabric: FlowFabric) -> None:
    """Agree to whatever suspends, as soon as it gave up its lease."""
    port = await fabric.submitter()
    async with aclosing(await port.events(LEASES, EventScope(), "oldest")) as log:
        async for event in log:
            assert isinstance(event, LeaseEvent)
            run = fabric.run(event.execution_id)
            if await run.state() == "suspended":
                await run.approve("ada")


async def kill_again_and_again(
    agent: Task[[str], str], url: str, notes: Path, rounds: int
) -> AsyncIterator[Run[str]]:
    """The runs of all rounds; in each a worker is started and killed at one of its places."""
    chance = random.Random(11)
    for number in range(rounds):
        for place in range(AGENTS_A_ROUND):
            yield await agent.submit(f"goal-{number}-{place}")
        async with worker_process("tests.chaos.agent_worker", url, notes) as victim:
            assert victim.stdout is not None
            for _ in range(chance.randint(1, PLACES)):
                assert await victim.stdout.readline()


def last_calls(notes: Path) -> dict[str, Recorded]:
    """Goal and topic -> the last time the model was asked about it."""
    found: dict[str, Recorded] = {}
    for line in notes.read_text().splitlines():
        goal, topic, call = line.split()
        found.setdefault(goal, {})[topic] = call
    return found


async def recorded_calls(fabric: FlowFabric, run: Run[Any]) -> Recorded:
    """What the journal kept of each thought; it is whole, and of one call."""
    calls: Recorded = {}
    for entry in await (await fabric.open()).worker.whole_journal(run.id):
        if entry.name == "think":
            words = str(msgspec.json.decode(entry.outcome)["value"]).split()
            topic, call, _ = words[0].split("/")
            assert words == [f"{topic}/{call}/{place}" for place in range(LENGTHS[topic])]
            calls[topic] = call
    return calls


def check_frames(frames: list[Frame], recorded: Recorded) -> None:
    """Every call's words are there in order, without gap and only once; those of a recorded call
    to the last, and they come in the order of the thoughts."""
    words: dict[tuple[str, str], list[int]] = {}
    for frame in frames:
        topic, call, place = frame.text.split("/")
        words.setdefault((topic, call), []).append(int(place))
    for (topic, call), places in words.items():
        assert places == list(range(len(places)))
        assert len(places) == LENGTHS[topic] or recorded[topic] != call
    whole = [call for call in words if recorded[call[0]] == call[1]]
    assert whole == list(recorded.items())
    assert list(recorded) == list(THOUGHTS)


@pytest.mark.timeout(60 + 10 * ROUNDS)
@pytest.mark.parametrize("name", HOMES)
async def test_a_killed_agent_thinks_nothing_twice(name: str, tmp_path: Path) -> None:
    notes, rounds = tmp_path / "notes", -(-ROUNDS // 3) if name == "http" else ROUNDS
    async with home(name, tmp_path) as url, fabric_at(url) as fabric:
        agent = declare(fabric, noting_model(notes))
        budget = await fabric.budget("tokens", hard={"tokens": 10**9})
        reviewing = asyncio.ensure_future(review(fabric))
        try:
            runs = [run async for run in kill_again_and_again(agent, url, notes, rounds)]
            async with worker_process("tests.chaos.agent_worker", url, notes):
                outcomes = await asyncio.gather(*(run.result(timeout="60s") for run in runs))
        finally:
            reviewing.cancel()
            await asyncio.wait([reviewing])
        assert all(outcome.endswith("agreed by ada") for outcome in outcomes)
        asked = last_calls(notes)
        attempts = [one.type for run in runs for one in await run.attempts()]
        assert attempts.count("reclaim") >= rounds // 2
        for run, outcome in zip(runs, outcomes, strict=True):
            recorded = await recorded_calls(fabric, run)
            goal, _, said = outcome.partition(": ")
            # A call after the recorded one would be the last one.
            assert asked[goal] == recorded
            assert said.split()[0].split("/")[1] == recorded["check"]
            check_frames([frame async for frame in run.stream()], recorded)
        assert (await budget.status()).usage == {"tokens": sum(LENGTHS.values()) * len(runs)}
        if not url.startswith("http"):
            await check_store(fabric)
