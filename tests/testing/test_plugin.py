"""The plugin in a project of its own, which knows nothing of this one's fixtures: pytest finds it
by the entry point of the installed package."""

import asyncio
import sys
from pathlib import Path

_PAGES = Path(__file__).parents[2] / "docs" / "how-to"


def blocks_of(page: str) -> list[str]:
    parts = (_PAGES / page).read_text().split("```python\n")[1:]
    return [part.partition("```")[0] for part in parts]


async def test_the_page_for_newcomers_works_without_any_setup(tmp_path: Path) -> None:
    """The first block of code as it stands there: no marker, no configuration."""
    await passes(tmp_path, blocks_of("test-tasks.md")[:1], 1)


_APP = """
from flowfabric import Context, FlowFabric

fabric = FlowFabric("sqlite:////nowhere/app.db")


@fabric.task(retries=2)
async def remind(ctx: Context, name: str) -> str:
    await ctx.sleep("3d")
    return "sent" if await ctx.approve(f"remind {name}?") else "kept"
"""


async def test_the_fabric_of_a_program_is_tested_without_any_setup(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(_APP)
    await passes(tmp_path, blocks_of("test-tasks.md")[1:2], 1)


async def test_the_recipes_work(tmp_path: Path) -> None:
    await passes(tmp_path, blocks_of("recipes.md"), 2)


async def test_the_page_about_cancelling_works(tmp_path: Path) -> None:
    await passes(tmp_path, blocks_of("cancel-work.md"), 4)


async def test_the_page_about_failures_works(tmp_path: Path) -> None:
    await passes(tmp_path, blocks_of("handle-failures.md"), 5)


async def test_the_page_about_durable_programs_works(tmp_path: Path) -> None:
    await passes(tmp_path, blocks_of("../explanation/durable-programs.md"), 2)


async def test_the_page_about_changing_code_runs(tmp_path: Path) -> None:
    await passes(tmp_path, blocks_of("change-code.md"), 4)


async def passes(tmp_path: Path, blocks: list[str], tests: int) -> None:
    (tmp_path / "test_page.py").write_text("\n".join(blocks))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_page.py"),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told, _ = await process.communicate()
    assert process.returncode == 0, told.decode()
    assert f"{tests} passed" in told.decode()
