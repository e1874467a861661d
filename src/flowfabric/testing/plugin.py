"""Fixtures for pytest; they come by themselves where FlowFabric is installed."""

import inspect
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from flowfabric.testing import FabricOf, Kit, VirtualClock

try:
    from pytest_asyncio import fixture
except ModuleNotFoundError:
    # Other tests of such a project must not fail for fixtures that they do not use.
    fixture: Any = pytest.fixture  # type: ignore[no-redef]

_OURS: Final = frozenset({"fabric", "fabric_of"})


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: object, name: str, obj: object) -> None:
    """A coroutine test that uses a fabric needs no marker: it is marked here, before other
    plugins look for markers."""
    if not inspect.iscoroutinefunction(obj) or _OURS.isdisjoint(inspect.signature(obj).parameters):
        return
    marks = {mark.name for mark in getattr(obj, "pytestmark", ())}
    if marks.isdisjoint(("asyncio", "anyio")):
        pytest.mark.asyncio(obj)


@pytest.fixture
def clock() -> "VirtualClock":
    """The clock of the fabrics of a test: `await clock.advance("3d")`."""
    from flowfabric.testing import VirtualClock

    return VirtualClock()


@fixture
async def fabric(clock: "VirtualClock") -> "AsyncIterator[Kit]":
    """A fabric in memory with workers and a virtual clock."""
    from flowfabric.testing import open_kit

    async with open_kit(clock) as kit:
        yield kit


@fixture
async def fabric_of(clock: "VirtualClock") -> "AsyncIterator[FabricOf]":
    """`kit = await fabric_of(app)` runs the tasks of a program's fabric until the test ends, in
    memory and by the virtual clock."""
    from flowfabric.testing import open_kit

    async with AsyncExitStack() as kits:

        async def opened(app: Any, **terms: Any) -> "Kit":
            return await kits.enter_async_context(open_kit(clock, app=app, **terms))

        yield opened
