"""What a program may import, and what importing it loads."""

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import flowfabric


def _loaded(program: str) -> set[str]:
    """The modules that a program in a process of its own has loaded."""
    command = [sys.executable, "-c", f"{program}\nimport sys\nprint(*sys.modules)"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def _own(modules: set[str]) -> set[str]:
    return {name for name in modules if name.split(".")[0] == "flowfabric"}


def test_the_public_names_are_all_there_once() -> None:
    assert len(set(flowfabric.__all__)) == len(flowfabric.__all__)
    assert all(hasattr(flowfabric, name) for name in flowfabric.__all__)
    assert set(flowfabric.__all__) <= set(dir(flowfabric))
    assert flowfabric.__version__


def test_a_type_checker_sees_the_names_that_are_loaded() -> None:
    module = ast.parse(Path(str(flowfabric.__file__)).read_text())
    (typed,) = [one for one in module.body if isinstance(one, ast.If)]
    seen = {
        (one.module, name.name)
        for one in typed.body
        if isinstance(one, ast.ImportFrom)
        for name in one.names
    }
    loaded = {(home, name) for name, home in flowfabric._HOMES.items()}
    assert seen == loaded
    assert {name for _, name in loaded} == set(flowfabric.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Flowfabric'"):
        flowfabric.Flowfabric  # noqa: B018


def test_names_are_loaded_when_they_are_asked_for() -> None:
    assert _own(_loaded("import flowfabric")) == {
        "flowfabric",
        "flowfabric.core",
        "flowfabric.core.version",
    }
    assert "flowfabric.engine" not in _loaded("from flowfabric import Frame, Run, ConfigError")


def test_the_operations_load_neither_engine_nor_server_nor_client() -> None:
    found = _own(_loaded("import flowfabric.operations.nouns"))
    packages = {name.split(".")[1] for name in found if "." in name}
    assert packages == {"core", "errors", "operations"}
    assert len(found) <= 80


_PUBLIC = {"flowfabric", "flowfabric.errors", "flowfabric.testing"}
_ROOT = Path(__file__).parents[2]
_IMPORT = re.compile(r"^\s*(?:from (flowfabric[\w.]*) import ([\w, ]+)|import (flowfabric[\w.]*))")


def _imports(text: str) -> set[tuple[str, str]]:
    """The modules and names of ours that a text imports."""
    found = set()
    for line in text.splitlines():
        if match := _IMPORT.match(line):
            names = (match[2] or "").split(",")
            found |= {(match[1] or match[3], name.strip()) for name in names}
    return found


@pytest.mark.parametrize(
    "page",
    [
        *sorted(_ROOT.glob("examples/*.py")),
        *(page for page in sorted(_ROOT.glob("docs/[!ae]*/*.md"))),
        _ROOT / "README.md",
    ],
    ids=lambda page: page.name,
)
def test_what_an_example_imports_is_public(page: Path) -> None:
    imported = _imports(page.read_text())
    assert {module for module, _ in imported} <= _PUBLIC
    for module, name in imported:
        assert not name or hasattr(import_module(module), name), f"{module}.{name}"
