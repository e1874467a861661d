"""The tour that is made of curl alone."""

import asyncio
from pathlib import Path

import pytest

from tests.server.processes import running

TOUR = Path(__file__).parents[2] / "examples" / "curl" / "tour.sh"


@pytest.mark.parametrize("token", ["", "a-token-of-the-tour"])
async def test_the_tour_ends_well(token: str, tmp_path: Path) -> None:
    async with running(tmp_path, FF_API_TOKEN=token) as process:
        tour = await asyncio.create_subprocess_exec(
            *(str(TOUR), process.url, token),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        told, _ = await tour.communicate()
        assert tour.returncode == 0, told.decode()
        assert told.decode().endswith("done\n")
