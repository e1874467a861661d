"""What editors and type checkers know of tasks: wrong calls are errors, results are inferred."""

import re
from pathlib import Path

import pytest
from mypy import api

SAMPLES = Path(__file__).parent / "samples"
CONFIG = Path(__file__).parents[2] / "pyproject.toml"
_ERROR = re.compile(r"^.*:(\d+): error: .*\[([a-z-]+)\]$", re.MULTILINE)
_MARK = re.compile(r"# refused: ([a-z-]+)$")


def complaints(sample: Path) -> list[tuple[int, str]]:
    found, fault, _ = api.run(["--config-file", str(CONFIG), "--no-pretty", str(sample)])
    assert not fault
    assert "error:" not in _ERROR.sub("", found)
    return [(int(number), code) for number, code in _ERROR.findall(found)]


def refused(text: str) -> list[tuple[int, str]]:
    marks = ((at, _MARK.search(line)) for at, line in enumerate(text.splitlines(), 1))
    return [(at, mark[1]) for at, mark in marks if mark]


@pytest.mark.timeout(300)
def test_right_calls_pass_and_wrong_ones_are_errors(tmp_path: Path) -> None:
    assert complaints(SAMPLES / "right.py") == []
    # Kept under another name, so that checking the repository does not stumble over it.
    wrong = (SAMPLES / "wrong.txt").read_text()
    copy = tmp_path / "wrong.py"
    copy.write_text(wrong)
    assert complaints(copy) == refused(wrong)
    assert len(refused(wrong)) > 10
