"""The tables of operations in the reference, written from the declarations.

`make pages` writes them anew; a test compares.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from flowfabric.app import backend_of
from flowfabric.config import Settings, StoreUrl
from flowfabric.engine import Engine, engine_on
from flowfabric.operations.declaration import Operation, operations_of
from flowfabric.operations.nouns import DECLARED, NOUNS
from flowfabric.server.operations import route_of
from tests.proofs import proofs
from tests.server.rest_page import scope_text

_REFERENCE: Final = Path(__file__).parents[1] / "docs" / "reference"
OPERATIONS: Final = _REFERENCE / "operations.md"
CLIENT: Final = _REFERENCE / "client.md"
CLI: Final = _REFERENCE / "cli.md"
BEGIN: Final = "<!-- written from the declarations -->\n"
END: Final = "<!-- end of what is written from the declarations -->\n"


def operations_text() -> str:
    return _replaced(OPERATIONS, "\n".join(_operations()))


def client_text() -> str:
    return _replaced(CLIENT, "\n".join(_methods()))


def cli_text() -> str:
    return _replaced(CLI, "\n".join(_commands()))


def _replaced(page: Path, lines: str) -> str:
    """The page with what stands between the marks written anew."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"{page} has lost its marks"
    return f"{before}{begin}\n{lines}\n\n{end}{after}"


def _operations() -> Iterator[str]:
    tests, engine = proofs(), engine_on(backend_of(Settings(store=StoreUrl("memory"))))
    for noun in NOUNS:
        yield from (f"### {noun.__name__}", "")
        yield from ("| operation | route | scope | use case | test |", "|---|---|---|---|---|")
        for one in operations_of(noun):
            route = f"`{one.method} {one.path}`"
            proof = ", ".join(f"`{test}`" for test in tests.get(one.name, ()))
            scope = scope_text(route_of(one))
            yield f"| `{one.name}` | {route} | {scope} | `{_use_case(engine, one)}` | {proof} |"
        yield ""


def _methods() -> Iterator[str]:
    yield from ("| Noun | Methods |", "|---|---|")
    for noun in NOUNS:
        names = " ".join(one.name for one in operations_of(noun))
        yield f"| {noun.__name__.lower()} | `{names}` |"


def _commands() -> Iterator[str]:
    yield from ("| command | what it does |", "|---|---|")
    for one in DECLARED:
        if one.terms.command:
            yield f"| `{' '.join([one.terms.command, *_words(one)])}` | {one.summary} |"


def _words(declared: Operation[..., Any]) -> Iterator[str]:
    for name, one in declared.signature.parameters.items():
        is_needed = one.default is one.empty
        yield name.upper() if is_needed else f"[--{name.replace('_', '-')}]"


def _use_case(engine: Engine, declared: Operation[..., Any]) -> str:
    """The function that implements an operation, as `module:Class.function`."""
    method = engine.use_case(declared)
    return f"{method.__module__.removeprefix('flowfabric.')}:{method.__qualname__}"


if __name__ == "__main__":
    OPERATIONS.write_text(operations_text())
    CLIENT.write_text(client_text())
    CLI.write_text(cli_text())
