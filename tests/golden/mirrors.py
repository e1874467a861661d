"""Which functions of `core` the Lua files mirror, as the files say themselves.

A comment `-- mirrors core.a.b, core.c.d` stands above the Lua function that does what these do.
"""

import re
from functools import cache
from importlib import import_module
from types import FunctionType
from typing import Any, Final, NamedTuple

from flowfabric.backend.valkey.library import FILES, source

_MARK: Final = re.compile(
    r"^-- (?:(?P<rendered>\S+) )?mirrors (?P<mirrored>core\.[\w.]+(?:, core\.[\w.]+)*)$"
    r"(?:\n--.*)*(?:\n(?:local )?function (?P<function>[\w.]+)\()?",
    re.MULTILINE,
)


class Mirror(NamedTuple):
    file: str
    function: str
    mirrored: tuple[str, ...]


@cache
def mirrors() -> tuple[Mirror, ...]:
    return tuple(
        Mirror(file, match["rendered"] or match["function"], tuple(match["mirrored"].split(", ")))
        for file in FILES
        for match in _MARK.finditer(source(file))
    )


def mirrored() -> set[str]:
    """The functions of `core`, by their dotted names."""
    return {name for mirror in mirrors() for name in mirror.mirrored}


def find(name: str) -> FunctionType:
    """The function of this dotted name, which begins below our package."""
    path, _, last = name.rpartition(".")
    module, _, class_name = path.partition("._")
    owner: Any = import_module(f"flowfabric.{module}")
    found = getattr(getattr(owner, f"_{class_name}") if class_name else owner, last)
    assert isinstance(found, FunctionType), name
    return found


def exports() -> dict[str, str]:
    """Per file, Lua that shows its mirroring functions to the probes of `probes.lua`."""
    texts: dict[str, list[str]] = {}
    for file, function, _ in mirrors():
        texts.setdefault(file, []).append(f"ff.probed['{file}.{function}'] = {function}")
    return {file: "\n".join(lines) for file, lines in texts.items()}
