"""One fabric per home, open for the length of a test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowfabric import FlowFabric
from tests.sdk.backends import BACKENDS


@pytest.fixture(params=sorted(BACKENDS))
async def fabric(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FlowFabric]:
    async with BACKENDS[request.param](tmp_path) as opened:
        yield opened
