"""Golden vectors: what a function of `core` is given and answers, and the probe that asks Lua."""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from flowfabric.backend.valkey.packing import (
    entries_of,
    row_of,
)
from flowfabric.core.record import Record
from tests.golden.inputs import NOW, Inputs
from tests.golden.server import Ask
from tests.stores import SEARCHABLE

_replace = msgspec.structs.replace

# How many of a kind are drawn.
FEW, SOME, MANY = 40, 150, 500


class Case(NamedTuple):
    probe: str
    given: list[Any]
    expect: Callable[[], Any]
    # The probe's answer as a value of `core`.
    read: Callable[[Any], Any] = lambda answer: answer
    now: int = NOW

    @property
    def ask(self) -> Ask:
        return self.probe, self.now, self.given


Make = Callable[[Inputs], Case]


Counted = tuple[Make, int]


def row(one: Record) -> list[Any]:
    return row_of(one, SEARCHABLE)


def read_log(answer: Any) -> list[Any]:
    return [entry for group in answer for entry in entries_of(group)]
