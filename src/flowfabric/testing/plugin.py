"""Fixtures for pytest; they come by themselves where FlowFabric is installed."""

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
