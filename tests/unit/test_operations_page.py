"""The page of operations is what the declarations say; functions and tests that it names exist."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

from flowfabric.operations.nouns import DECLARED
from tests.operations_page import CLI, CLIENT, OPERATIONS, cli_text, client_text, operations_text
from tests.proofs import proofs

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| [^|]+ \| `([\w.]+):([\w.]+)` \| `(\w+\.py)::(\w+)` \|$")


def _behind() -> str:
    """The list that people write: what the engine does behind the declared operations."""
    return OPERATIONS.read_text().partition("\n## Behind them\n")[2]


def rows() -> list[tuple[str, str, str, str]]:
    found = (ROW.match(line) for line in _behind().splitlines())
    return [(row[1], row[2], row[3], row[4]) for row in found if row]


def test_the_tables_are_up_to_date() -> None:
    assert OPERATIONS.read_text() == operations_text(), "run make pages"
    assert CLIENT.read_text() == client_text(), "run make pages"
    assert CLI.read_text() == cli_text(), "run make pages"


def test_every_operation_is_proven_on_every_store() -> None:
    assert set(proofs()) == {one.name for one in DECLARED}


def test_every_line_of_a_table_names_a_function_and_a_test() -> None:
    lines = [line for line in _behind().splitlines() if line.startswith("|")]
    titles = [line for line in lines if line.startswith(("| operation |", "|---|"))]
    assert len(rows()) == len(lines) - len(titles) > 40


@pytest.mark.parametrize(("module", "name"), [row[:2] for row in rows()])
def test_the_function_exists(module: str, name: str) -> None:
    found: object = import_module(f"flowfabric.{module}")
    for part in name.split("."):
        found = getattr(found, part)
    assert callable(found)


@pytest.mark.parametrize(("file", "name"), sorted({row[2:] for row in rows()}))
def test_the_test_exists(file: str, name: str) -> None:
    tree = ast.parse((ROOT / "tests" / "conformance" / file).read_text())
    names = {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert name in names
