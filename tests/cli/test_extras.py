"""The command without the packages of its extra."""

import subprocess
import sys
from pathlib import Path


def test_without_its_packages_the_command_names_the_extra(tmp_path: Path) -> None:
    program = "import sys; sys.modules['typer'] = None; from flowfabric.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "list"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "error: the command needs the package typer: pip install 'flowfabric[cli]'\n"
    )
