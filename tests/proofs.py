"""Which conformance test proves which operation.

`@proves(Executions.set_priority)` on a test puts it on the page of operations; a declared operation
without such a test is an error.
"""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from flowfabric.operations.declaration import Operation

F = TypeVar("F", bound=Callable[..., Any])

SUITE: Final = Path(__file__).parent / "conformance"


def proves(*_: Operation[..., Any]) -> Callable[[F], F]:
    """Marks the test to read first for these operations."""
    return lambda test: test


def proofs() -> dict[str, list[str]]:
    """The tests of each operation, as `file.py::test`, by the name of the operation."""
    found: dict[str, list[str]] = {}
    for path in sorted(SUITE.glob("test_*.py")):
        for test, name in _marks(ast.parse(path.read_text())):
            found.setdefault(name, []).append(f"{path.name}::{test}")
    return found


def _marks(module: ast.Module) -> Iterator[tuple[str, str]]:
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for mark in node.decorator_list:
                yield from ((node.name, name) for name in _proved(mark))


def _proved(mark: ast.expr) -> Iterator[str]:
    if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == "proves":
        for one in mark.args:
            assert isinstance(one, ast.Attribute)
            yield one.attr
