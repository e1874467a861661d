"""The plugin in a project of its own, which knows nothing of this one's fixtures: pytest finds it
by the entry point of the installed package."""

import asyncio
import sys
from pathlib import Path

_TEST = """
import pytest


@pytest.mark.asyncio
async def test_a_nap(fabric, clock):
    @fabric.task
    async def add(a: int) -> int:
        return a + 1

    run = await add.options(delay="3d").submit(1)
    await clock.advance("2d")
    await fabric.assert_state(run, "delayed")
    await clock.advance("1d")
    assert await run.result() == 2
"""


async def test_the_fixtures_work_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "test_nap.py").write_text(_TEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_nap.py"),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told, _ = await process.communicate()
    assert process.returncode == 0, told.decode()
    assert "1 passed" in told.decode()
