"""What a program may import, and what importing it loads."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import flowfabric


def _loaded(program: str) -> set[str]:
    """The modules that a program in a process of its own has loaded."""
    command = [sys.executable, "-c", f"{program}\nimport sys\nprint(*sys.modules)"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def _own(modules: set[str]) -> set[str]:
    return {name for name in modules if name.split(".")[0] == "flowfabric"}


def test_the_public_names_are_all_there_and_sorted() -> None:
    assert sorted(flowfabric.__all__) == flowfabric.__all__
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
