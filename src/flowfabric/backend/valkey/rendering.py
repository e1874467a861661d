"""Renders Lua files: puts in place what they take from Python, when the library is made.

In a file `@name` is the index of a field in a packed array, `$module.NAME` the constant NAME of a
module below, and `$kind.word` a word of one of the vocabularies below. A name that is not there is
an error when the library is made, so Lua cannot use what Python has renamed or dropped.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from types import ModuleType
from typing import Final, get_args

from flowfabric.backend import base, types
from flowfabric.backend.valkey import graph_rows, keys, layout, limit_packing
from flowfabric.backend.valkey.requests import REQUESTS
from flowfabric.core import (
    apply,
    documents,
    events,
    graph,
    ids,
    journal,
    lease,
    members,
    merge_patch,
    new_execution,
    plan,
    queues,
    record,
    retention,
    settle,
    states,
    streams,
    views,
)
from flowfabric.core.limits import asks, budgets, gates

Constant = int | float | str
Words = Mapping[str, str]

MODULES: Final[dict[str, ModuleType]] = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        asks,
        base,
        new_execution,
        budgets,
        documents,
        graph_rows,
        events,
        apply,
        gates,
        graph,
        ids,
        journal,
        keys,
        lease,
        members,
        merge_patch,
        queues,
        record,
        retention,
        settle,
        streams,
        views,
    )
}


def _words(*groups: Iterable[str]) -> Words:
    return {word: word for group in groups for word in group}


def _keys(tag: str) -> Words:
    """The beginnings of keys, by the name of their kind; `tag` is their tag, or how it begins."""
    return {name: f"{keys.PREFIX}{kind}:{tag}" for name, kind in keys.KINDS.items()}


WORDS: Final[dict[str, Words]] = {
    "attempt": _words(get_args(states.AttemptState)),
    "edge": _words(get_args(graph.EdgeState)),
    "enforcement": _words(get_args(budgets.EnforcementMode)),
    "event": _words(get_args(plan.EventKind)),
    "family": _words(get_args(plan.Family)),
    "disposition": _words(get_args(types.Disposition)),
    "field": keys.FIELDS,
    "grant": _words(get_args(lease.GrantKind)),
    "group": _words(get_args(graph.GroupState)),
    "reservation": _words(get_args(asks.ReservationState)),
    "key": _keys(""),
    "lane_key": _keys("{l:"),
    "config_key": _keys("{cfg}"),
    "next": _words(get_args(states.Next)),
    "on_soft_limit": _words(get_args(budgets.OnSoftLimit)),
    "outcome": _words(states.OUTCOMES.values()),
    "policy": _words(
        get_args(graph.GroupPolicy), get_args(graph.OnSatisfied), get_args(graph.CancelPolicy)
    ),
    "reason": _words(
        states.BLOCK_REASONS, states.DELAY_REASONS, states.LOST_REASONS, {states.FIRST}
    ),
    "rule": _words(states.MOVES),
    "state": _words(states.STATES),
    "view": _words(views.BY_NAME, keys.OTHER_VIEWS),
    "work": _words(get_args(graph.Work)),
}

_PLACES: Final[dict[str, tuple[str, ...]]] = {
    "": layout.RECORD,
    "a": layout.ATTEMPT,
    "p": layout.PLAN,
    "t": (*layout.SHARED_EVENT_FIELDS, *layout.OWN_EVENT_FIELDS),
    "m": layout.METER,
    "b": limit_packing.BUDGET,
    "q": limit_packing.QUOTA,
    "f": graph_rows.FLOW,
    "e": graph_rows.EDGE,
    "g": graph_rows.GROUP,
    "u": graph.Unsettled.__struct_fields__,
    **REQUESTS,
}
_COMMENT: Final = re.compile(r"^ *--.*\n", re.MULTILINE)
_PLACE: Final = re.compile(r"@(?:([a-z_]+)\.)?([a-z_]+)")
_NAMED: Final = re.compile(r"\$([a-z_]+)\.([A-Za-z_]+)")


def render(text: str) -> str:
    """A Lua file without comments, each name of Python in it replaced by its value."""
    return _NAMED.sub(_named, _PLACE.sub(_place, _COMMENT.sub("", text)))


def constants_in(text: str) -> dict[str, Constant]:
    """The constants a file uses, by their names there."""
    found = _NAMED.finditer(_COMMENT.sub("", text))
    return {f"{kind}.{name}": _constant(kind, name) for kind, name in _pairs(found)}


def _pairs(found: Iterable[re.Match[str]]) -> Iterable[tuple[str, str]]:
    return ((match[1], match[2]) for match in found if match[2].isupper())


def _constant(module: str, name: str) -> Constant:
    value = getattr(MODULES.get(module), name, None)
    if not isinstance(value, int | float | str):
        raise ValueError(f"no constant ${module}.{name}")
    return value


def _named(match: re.Match[str]) -> str:
    kind, name = match[1], match[2]
    if name.isupper():
        return lua(_constant(kind, name))
    word = WORDS.get(kind, {}).get(name)
    if word is None:
        raise ValueError(f"no word {match[0]}")
    return lua(word)


def _place(match: re.Match[str]) -> str:
    names = _PLACES[match[1] or ""]
    if match[2] not in names:
        raise ValueError(f"no field {match[0]}")
    return str(names.index(match[2]) + 1)


def lua(value: object) -> str:
    """A value as Lua source; a set becomes a table in which each member is true."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
            return f"'{escaped}'"
        case Mapping():
            return "{ " + ", ".join(f"[{lua(k)}] = {lua(v)}" for k, v in value.items()) + " }"
        case frozenset() | set():
            return "{ " + ", ".join(f"[{lua(one)}] = true" for one in sorted(value)) + " }"
        case Collection():
            return "{ " + ", ".join(lua(one) for one in value) + " }"
        case _:
            raise TypeError(f"no Lua for {type(value).__name__}")
