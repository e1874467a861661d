"""Random programs come to the same with and without crashes, lost leases and restarted workers."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings

from flowfabric import Context, Run
from flowfabric.testing import Kit
from flowfabric.testing.outside import Observation, observed
from tests.model.programs import (
    Disturbances,
    Machine,
    Program,
    disturbances,
    disturbing,
    furnish,
    programs,
)
from tests.rotation import on_stores
from tests.testing.homes import kit_at

HOMES = on_stores(["memory"], ["sqlite", "http", "postgres", "valkey", "valkey-cluster"])
pytestmark = pytest.mark.timeout(10 * settings().max_examples)


async def seen(kit: Kit, program: Program, wanted: Disturbances, how: str) -> Observation:
    @kit.task(name=f"program {how}", retries=1, backoff="1m")
    async def run(ctx: Context, body: Program) -> list[str]:
        machine = Machine(ctx, run)
        await machine.run(body)
        return machine.trace

    background: set[asyncio.Task[Any]] = set()
    crashes = disturbing(kit, wanted, background)

    async def submit() -> Run[Any]:
        return await run.submit(program)

    kit.middleware += crashes
    kit.observers += crashes
    _, found = await observed(kit, submit, how)
    await asyncio.gather(*background)
    return found


async def both(home: str, program: Program, wanted: Disturbances) -> list[Observation]:
    """What is seen of a program without and with disturbances."""
    found: list[Observation] = []
    for disturbed in ([], wanted):
        with TemporaryDirectory() as directory:
            async with kit_at(home, Path(directory)) as kit:
                await furnish(kit)
                found.append(await seen(kit, program, disturbed, "of the model"))
    return found


@pytest.mark.parametrize("home", HOMES)
@example([["try", [["step", 0, "fail"]], "all", [["sleep", 1], ["step", 1, "ok"]]]], [("crash", 4)])
@example([["start", []], ["step", 0, "ok"], ["raise", "from"]], [("taken", 3)])
@given(programs(), disturbances())
def test_a_program_comes_to_the_same_however_it_is_disturbed(
    home: str, program: Program, wanted: Disturbances
) -> None:
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        calm, disturbed = runner.run(both(home, program, wanted))
    assert disturbed == calm
