"""Limits batch by batch: every answer of a store is the reference's, to the letter."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from flowfabric.backend.base import Backend
from flowfabric.core.limits.asks import Release, Vacate
from flowfabric.errors import Bug, FlowFabricError
from tests.clock import VirtualClock
from tests.model.limit_calls import LimitCalls
from tests.model.sides import COUNTS, STORES, agree
from tests.stores import COMPARED

STEPS = 250
SEEDS = range(6)
NOBODY = "{fp:0}:00000000-0000-4000-8000-000000000000"

Told = list[Any]


async def made(backend: Backend, name: str, items: list[Any]) -> Told:
    return [_told(answer) for answer in await getattr(backend, name)(items)]


def _told(answer: Any) -> Any:
    if isinstance(answer, Bug):
        raise answer
    if isinstance(answer, FlowFabricError):
        return type(answer), answer.detail, dict(answer.details)
    return answer


async def drop_what_ended(backend: Backend, calls: LimitCalls) -> Told:
    """Stores that ask limits one by one need not look at those behind a refusal, and drop what
    ended there later; so it is dropped on both sides as soon as it has ended."""
    vacated = [Vacate(gate=gate, execution_id=NOBODY) for gate in calls.gates]
    released = [Release(own, NOBODY) for own in calls.budgets]
    return [*await made(backend, "vacate", vacated), *await made(backend, "release", released)]


async def compare(reference: Backend, subject: Backend, calls: LimitCalls) -> None:
    for read, names in (("budgets", calls.budgets), ("gates", calls.gates)):
        seen, shown = [await getattr(side, read)(names) for side in (reference, subject)]
        agree(read, seen, shown)


@asynccontextmanager
async def both(
    store: str, clock: VirtualClock, directory: Path
) -> AsyncIterator[tuple[Backend, Backend]]:
    sides = STORES["memory"](clock, directory), STORES[store](clock, directory)
    for side in sides:
        await side.prepare()
    yield sides
    for side in sides:
        await side.close()


@pytest.mark.parametrize("store", COMPARED)
@pytest.mark.parametrize("seed", SEEDS)
async def test_every_answer_is_the_references(store: str, seed: int, tmp_path: Path) -> None:
    clock, calls = VirtualClock(), LimitCalls(seed, COUNTS)
    async with both(store, clock, tmp_path) as sides:
        for name, items in calls.define():
            agree(name, *[await made(side, name, items) for side in sides])
        for step in range(STEPS):
            name, items = calls.next()
            agree(f"{step} {name}", *[await made(side, name, items) for side in sides])
            await compare(*sides, calls)
            clock.advance(calls.pause())
            agree(f"{step} ended", *[await drop_what_ended(side, calls) for side in sides])
            if step % 50 == 49:
                agree("purged", *[await side.purge(10) for side in sides])
        for side in sides:
            # Nobody created the executions that have ledgers here.
            found = [one for one in await side.verify() if one.kind != "ledger"]
            assert found == []
