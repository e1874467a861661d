"""What functions are asked about limits; see `requests`."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from flowfabric.backend.valkey.requests import Request
from flowfabric.core.limits.asks import (
    Cancel,
    Commit,
    Extend,
    Release,
    Reserve,
    Reset,
    Spend,
    Vacate,
)


class Act(Request):
    """ff1_spend, ff1_slots: what to do, where, and with what (a struct of `ACTS` as an array)."""

    name: str
    tag: str
    what: list[Any]


# What acts on limits: the structs of `core` themselves, each by its name in a Lua file.
ACTS: Final[Mapping[type[msgspec.Struct], str]] = {
    Spend: "spend",
    Release: "release",
    Reset: "reset",
    Reserve: "reserve",
    Commit: "commit",
    Cancel: "cancel",
    Extend: "extend",
    Vacate: "vacate",
}


class Admitting(Request):
    """ff1_admit. Items are admissions as arrays; one with the rank False does not wait. Promised is
    {gate, slots, entries}, ...: what dry items were shown by earlier calls of the same batch."""

    items: list[list[Any]]
    promised: Sequence[Any]
    restorable: bool


class AskLimit(Request):
    tag: str
    limit: str
    cap: int


class Restoring(Request):
    """ff1_restore: changes as ff1_admit answered them."""

    execution_id: str
    holder: str
    changes: list[Any]


class Attaching(Request):
    """ff1_attach: budget and execution in turn for those that are created and for those that are
    purged, and executions whose ledgers go."""

    tag: str
    listed: Sequence[str]
    unlisted: Sequence[str]
    gone: Sequence[str]
