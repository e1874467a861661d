"""The page of operations names functions and tests; all of them must exist."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "operations.md"
ROW = re.compile(r"^\| [^|]+ \| `([\w.]+):([\w.]+)` \| `(\w+\.py)::(\w+)` \|$")


def rows() -> list[tuple[str, str, str, str]]:
    found = (ROW.match(line) for line in PAGE.read_text().splitlines())
    return [(row[1], row[2], row[3], row[4]) for row in found if row]


def test_every_line_of_a_table_names_a_function_and_a_test() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    titles = [line for line in lines if line.startswith(("| operation |", "|---|"))]
    assert len(rows()) == len(lines) - len(titles) > 50


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
