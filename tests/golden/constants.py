"""Constants that Lua files use, changed for a while in every module that has them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from flowfabric.backend.valkey.rendering import MODULES, Constant


def _holders(module: str, name: str, value: Constant) -> Iterator[object]:
    """The module of a constant, and those that took it from there by its name."""
    yield MODULES[module]
    for other, holder in list(sys.modules.items()):
        if other.startswith("flowfabric.") and vars(holder).get(name) == value:
            yield holder


@contextmanager
def patched(constant: str, value: Constant) -> Iterator[None]:
    """`constant` is named as in a Lua file: `module.NAME`."""
    module, _, name = constant.partition(".")
    before: Constant = getattr(MODULES[module], name)
    holders = [*_holders(module, name, before)]
    for holder in holders:
        setattr(holder, name, value)
    try:
        yield
    finally:
        for holder in holders:
            setattr(holder, name, before)
