"""What `make` installs is pinned, and the pins are versions that the package allows."""

import re
import tomllib
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parents[2]
_PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
_DECLARED: Final = [
    *_PROJECT["dependencies"],
    *(one for extra in _PROJECT["optional-dependencies"].values() for one in extra),
]


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pins}


@pytest.mark.parametrize("declared", sorted({one for one in _DECLARED if "flowfabric[" not in one}))
def test_every_dependency_is_pinned_to_a_version_that_it_allows(declared: str) -> None:
    requirement = Requirement(declared)
    version = _pins()[canonicalize_name(requirement.name)]
    assert version in requirement.specifier


def test_every_installation_of_make_uses_the_pins() -> None:
    installs = re.findall(r"pip install .*--editable.*", (ROOT / "Makefile").read_text())
    assert len(installs) == 2
    assert all("--constraint constraints.txt" in one for one in installs)
