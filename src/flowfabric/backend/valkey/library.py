"""The function library: Lua files in order, with the tables they share rendered from `core`.

`rendering` says how a file names what it takes from Python. The version is our
release and a digest of the whole text: two processes agree on it exactly when they would load the
same, and of two releases it tells the newer.
"""

from collections.abc import Mapping
from functools import cache, lru_cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final

from flowfabric.backend.valkey import layout
from flowfabric.backend.valkey.graph_rows import FLOW
from flowfabric.backend.valkey.indexing import index_views, render_reindex
from flowfabric.backend.valkey.keys import (
    CHILD_RANGES,
    FLOW_RANGES,
    INDEX_PARTITION,
    partition_key,
    tag_of,
)
from flowfabric.backend.valkey.packing import Args, pack_plan
from flowfabric.backend.valkey.rendering import Constant, constants_in, lua, render
from flowfabric.core import events, graph, record, states
from flowfabric.core.members import cancel_child_plan, cancel_sibling_plan, release_plan, skip_plan
from flowfabric.core.plan import OWN_PAUSES, Plan
from flowfabric.core.rules.operators import cancel
from flowfabric.core.version import VERSION

INTERFACE: Final = 1
NAME: Final = "flowfabric"
# In the order of use: what a file takes from another at load time must stand before it.
FILES: Final = (
    "prelude",
    "keys",
    "record",
    "events",
    "topics",
    "queues",
    "hints",
    "views",
    "transition",
    "same_shape",
    "edges",
    "graph",
    "members",
    "walk",
    "children",
    "cancel_siblings",
    "settle",
    "preflight",
    "settle_plan",
    "journal",
    "waiters",
    "budgets",
    "spend",
    "gates",
    "slots",
    "admit",
    "limits",
    "lease",
    "create",
    "claim",
    "apply",
    "append",
    "list",
    "purge",
    "flows",
    "growing",
    "upstreams",
    "due",
    "presence",
    "config",
    "commit",
    "version",
)

# Seconds of processor time after which a call leaves the rest (further items, the rest of a claim,
# of a walk through a flow) to another call, and how many it does in any case. What is looked at
# before a walk is part of it, and the losers of a race of fifty are cancelled in one step. Far
# below what a call may take: it still has to write what it gathered and may share its core.
CPU_LIMITS: Final = {
    "items": (0.001, 2),
    "claim": (0.0015, 4),
    "flows": (0.001, 1),
    "preflight": (0.0005, 16),
    "walk": (0.0015, 16),
    "cancel_siblings": (0.0015, 50),
}
# A decision that is older when it arrives is made again, by a newer clock.
DECISION_MS: Final = 1_000
# Stands in a template for the words that are known only when it is used.
_MARK: Final = "\x01"
_STATES: Final = layout.PLAN.index("states")
# Where a flow counts its members in each public state.
_COUNTED: Final = {name: place for place, name in enumerate(states.PUBLIC_STATES, len(FLOW) + 1)}
# Behind these, once it has children, how many of them are.
_CHILDREN_COUNTED: Final = {name: at + len(_COUNTED) for name, at in _COUNTED.items()}


def library(*, test_mode: bool) -> tuple[str, str]:
    """The text to load and its version."""
    return _library(tuple(constants().items()), tuple(CPU_LIMITS.items()), test_mode=test_mode)


def constants() -> dict[str, Constant]:
    """Every constant that the files use, as it is now, by its name there."""
    return {name: value for file in FILES for name, value in constants_in(source(file)).items()}


@lru_cache
def _library(
    _: tuple[tuple[str, Constant], ...],
    long: tuple[tuple[str, tuple[float, int]], ...],
    *,
    test_mode: bool,
) -> tuple[str, str]:
    blocks = "\n".join(blocks_with({}))
    body = f"{_tables(test_mode=test_mode)}\nlocal CPU_LIMITS = {lua(dict(long))}\n{blocks}"
    digest = sha256(body.encode()).hexdigest()[:16]
    version = f"{VERSION} {digest}"
    return f"#!lua name={NAME}\nlocal LIBRARY_VERSION = {lua(version)}\n{body}", version


def blocks_with(added: Mapping[str, str]) -> list[str]:
    """The files, the first as it is and each other as a block, with what is added behind some."""
    texts = {name: render(source(name)) for name in FILES}
    texts["views"] += f"\n{render_reindex()}"
    for name, text in added.items():
        texts[name] += f"\n{text}"
    first, *others = texts.values()
    return [first, *(f"do\n{text}\nend" for text in others)]


@cache
def source(name: str) -> str:
    """A file as it is written."""
    return files(__package__).joinpath("lua", f"{name}.lua").read_text()


def _tables(*, test_mode: bool) -> str:
    """What `core` knows, as Lua: the only place the functions have it from."""
    tables: dict[str, Any] = {
        "TEST_MODE": test_mode,
        "RECORD_DEFAULTS": layout.RECORD_DEFAULTS,
        "ATTEMPT_DEFAULTS": layout.ATTEMPT_DEFAULTS,
        "PLAIN": layout.PLAIN,
        "INDEX_TAG": tag_of(partition_key(INDEX_PARTITION)),
        "INDEX_VIEWS": index_views(),
        "HELD": states.HELD,
        "CLAIMABLE": states.CLAIMABLE,
        "FINAL": states.FINAL,
        "COUNTS": record.DUE,
        "COUNTING": {state: _at(record.counting_instants(state)) for state in sorted(states.LIVE)},
        "MOVES": {
            rule: {
                source: {target for start, target in moves if start == source}
                for source, _ in sorted(moves)
            }
            for rule, moves in states.MOVES.items()
        },
        "LEASE_FIELDS": _at(record.LEASE_FIELDS),
        "GRANT_FIELDS": _at(record.GRANT_FIELDS),
        "SUSPENSION_FIELDS": _at(record.SUSPENSION_FIELDS),
        "FINAL_CLEARED": _at(record.FINAL_FIELDS),
        "CLAIM_CLEARED": _at(record.CLAIM_FIELDS),
        "BEGIN_CLEARED": _at(record.BEGIN_FIELDS),
        "RESUME_CLEARED": _at(record.RESUME_FIELDS),
        "ATTEMPT_TYPES": states.ATTEMPT_TYPES,
        "OWN_PAUSES": frozenset(OWN_PAUSES),
        "ENDINGS": events.ENDINGS,
        "DECISION_MS": DECISION_MS,
        **_graph_tables(),
    }
    return "\n".join(f"local {name} = {lua(value)}" for name, value in tables.items())


def _at(names: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(sorted(layout.AT[name] for name in names))


def _template(plan: Plan) -> list[Any]:
    packed = pack_plan(plan, Args(), frozenset())
    # A set has another order in each process, and all are to write the same library.
    packed[_STATES] = sorted(packed[_STATES])
    return packed


def _places(names: tuple[str, ...] | frozenset[str]) -> tuple[int, ...]:
    return tuple(_COUNTED[name] for name in states.PUBLIC_STATES if name in names)


def _graph_tables() -> dict[str, Any]:
    """Among them the plans that settling writes by itself."""
    blocked = record.Record("", "", "", state="blocked", reason="dependencies")
    return {
        "MARK": _MARK,
        "RELEASE_NOW": _template(release_plan(blocked, 1)),
        "RELEASE_LATER": _template(release_plan(blocked, -1)),
        "SKIP": _template(skip_plan("")),
        "CANCEL_SIBLING": _template(cancel_sibling_plan("", _MARK)),
        "CANCEL_CHILD": _template(cancel_child_plan("", _MARK)),
        "CANCEL": _template(cancel("", _MARK, "flow_cascade", None)),
        "OUTCOMES": states.OUTCOMES,
        "PUBLIC_BLOCKED": states.PUBLIC_BLOCKED,
        "COUNT_PLACES": _COUNTED,
        "CHILD_PLACES": _CHILDREN_COUNTED,
        "FLOW_RANGES": FLOW_RANGES,
        "CHILD_RANGES": CHILD_RANGES,
        "LIVE_PLACES": _places(graph.LIVE_PUBLIC),
        "UNHAPPY_PLACES": _places(graph.UNHAPPY),
        "CANCELLED_BY_POLICY": graph.CANCELLED_BY_POLICY,
    }
