"""Which library is good enough, and what must be true of ours."""

import os
import re
import subprocess
import sys
from collections import Counter

import pytest

from flowfabric.backend.valkey.functions import is_enough
from flowfabric.backend.valkey.library import library

OURS = "1.2.3 aaaa"


@pytest.mark.parametrize("found", [OURS, "1.2.4 bbbb", "1.10.0 bbbb", "2.0.0 bbbb"])
def test_our_own_or_a_newer_one_is(found: str) -> None:
    assert is_enough(found, OURS)


@pytest.mark.parametrize("found", ["", "1.2.2 bbbb", "1.2.3 bbbb", "0.9.9 aaaa", "nonsense"])
def test_none_or_an_older_or_another_of_this_release_is_not(found: str) -> None:
    assert not is_enough(found, OURS)


def test_a_test_s_library_is_another_one() -> None:
    assert library(test_mode=True)[1] != library(test_mode=False)[1]


def test_every_process_writes_the_same_library() -> None:
    """Or each that starts would load its own over that of the others."""
    program = (
        "from flowfabric.backend.valkey.library import library;print(library(test_mode=False)[1])"
    )
    versions = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(versions) == 1


def test_no_file_takes_the_name_that_another_offers() -> None:
    """The later one would replace the earlier, for everybody."""
    text, _ = library(test_mode=False)
    names = re.findall(r"^(?:function ff\.(\w+)|ff\.(\w+) =)", text, re.MULTILINE)
    offered = Counter("".join(name) for name in names)
    assert offered["perform"] == 1
    assert [name for name, times in offered.items() if times > 1] == []
