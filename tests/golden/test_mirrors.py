"""The marks in Lua files that say what they mirror."""

import re
from types import FunctionType
from typing import Final

import pytest

from flowfabric.backend.valkey.library import FILES, source
from tests.golden.equivalents import listed
from tests.golden.mirrors import find, mirrored, mirrors

_FUNCTION: Final = re.compile(r"^(?:local )?function ([\w.]+)\(", re.MULTILINE)
# Functions that have the name of one of `core` and do something else.
NAMESAKES: Final = frozenset(
    {
        ("apply", "apply"),
        ("claim", "has_more"),
        ("commit", "WRITERS.hold"),
        ("flows", "fits"),
        ("graph", "ff.overfull"),
        ("graph", "ff.write_graph"),
        ("graph", "flow_entry"),
        ("graph", "write_flow"),
        ("growing", "grow"),
        ("growing", "write"),
        ("list", "rank_of"),
        ("record", "ff.row"),
        ("spend", "acts.cancel"),
        ("spend", "acts.reset"),
        ("spend", "acts.spend"),
        ("views", "ff.queue_of"),
        ("views", "queue_of"),
        ("views", "set_of"),
        ("transition", "ff.hold"),
        ("transition", "ff.perform"),
        ("transition", "ff.write"),
    }
)


def test_every_mark_stands_above_a_function() -> None:
    assert [mirror for mirror in mirrors() if not mirror.function] == []


@pytest.mark.parametrize("name", sorted(mirrored()))
def test_what_is_mirrored_is_there(name: str) -> None:
    assert find(name).__qualname__.endswith(name.rpartition(".")[2])


def test_only_of_what_is_mirrored_a_change_is_listed_as_equivalent() -> None:
    assert listed() <= mirrored()


def _functions_of_core() -> set[str]:
    """The names of all functions in modules of which something is mirrored."""
    owners = [find(name).__globals__ for name in mirrored()]
    return {
        name.strip("_")
        for names in owners
        for name, value in names.items()
        if isinstance(value, FunctionType) and value.__module__ == names["__name__"]
    }


def test_a_function_named_like_one_of_core_says_whether_it_mirrors_it() -> None:
    marked = {(mirror.file, mirror.function) for mirror in mirrors()}
    named = {(file, name) for file in FILES for name in _FUNCTION.findall(source(file))}
    known = _functions_of_core()
    alike = {(file, name) for file, name in named if name.rpartition(".")[2] in known}
    assert alike - marked <= NAMESAKES, "write `-- mirrors core.…` above it, or list it here"
