"""One fabric per home, open for the length of a test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowfabric import FlowFabric
from tests.sdk.backends import EVERY, HOMES


@pytest.fixture(params=HOMES)
async def fabric(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FlowFabric]:
    async with EVERY[request.param](tmp_path) as opened:
        yield opened
