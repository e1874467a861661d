"""What the README shows runs as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_first_look_in_python_prints_what_the_readme_says(tmp_path: Path) -> None:
    text = README.read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (promised,) = re.findall(r"It prints `(.*?)`\.", text)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.strip() == promised
