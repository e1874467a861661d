"""The plugin in a project of its own, which knows nothing of this one's fixtures: pytest finds it
by the entry point of the installed package."""

import asyncio
import sys
from pathlib import Path

_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "test-tasks.md"


async def test_the_page_for_newcomers_works_without_any_setup(tmp_path: Path) -> None:
    """The first block of code as it stands there: no marker, no configuration."""
    code = _PAGE.read_text().partition("```python\n")[2].partition("```")[0]
    (tmp_path / "test_reminder.py").write_text(code)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_reminder.py"),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told, _ = await process.communicate()
    assert process.returncode == 0, told.decode()
    assert "1 passed" in told.decode()
