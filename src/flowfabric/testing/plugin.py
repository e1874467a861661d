"""Fixtures for pytest; they come by themselves where FlowFabric is installed."""

import inspect
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from flowfabric.testing import Kit, VirtualClock

try:
    from pytest_asyncio import fixture
except ModuleNotFoundError:
    # Other tests of such a project must not fail for fixtures that they do not use.
    fixture: Any = pytest.fixture  # type: ignore[no-redef]


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: object, name: str, obj: object) -> None:
    """A coroutine test that uses the fabric needs no marker: it is marked here, before other
    plugins look for markers."""
    if not inspect.iscoroutinefunction(obj) or "fabric" not in inspect.signature(obj).parameters:
        return
    marks = {mark.name for mark in getattr(obj, "pytestmark", ())}
    if marks.isdisjoint(("asyncio", "anyio")):
        pytest.mark.asyncio(obj)


@fixture
async def fabric() -> "AsyncIterator[Kit]":
    """A fabric in memory with workers and a virtual clock."""
    from flowfabric.testing import open_kit

    async with open_kit() as kit:
        yield kit


@fixture
async def clock(fabric: "Kit") -> "VirtualClock":
    """The clock of the fabric: `await clock.advance("3d")`."""
    return fabric.clock
