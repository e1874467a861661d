"""What `core` knows about graphs, for the library: the plans that settling writes by itself among
it."""

from typing import Any, Final

from flowfabric.backend.valkey.graph_rows import EDGE, FLOW, GROUP
from flowfabric.backend.valkey.keys import FLOW_RANGES
from flowfabric.backend.valkey.layout import PLAN
from flowfabric.backend.valkey.packing import Args, pack_plan
from flowfabric.core import graph
from flowfabric.core.members import cancel_sibling_plan, release_plan, skip_plan
from flowfabric.core.plan import Plan
from flowfabric.core.record import Record
from flowfabric.core.rules.operators import cancel
from flowfabric.core.states import OUTCOMES, PUBLIC_BLOCKED, PUBLIC_STATES

# `@f.name` in a file is the place of a field of a flow, and so on.
GRAPH_PLACES: Final = {
    "f": FLOW,
    "e": EDGE,
    "g": GROUP,
    "u": graph.Unsettled.__struct_fields__,
}

# Stands in a template for the words that are known only when it is used.
_MARK: Final = "\x01"
_STATES: Final = PLAN.index("states")
# Where a flow counts its members in each public state.
_COUNTED: Final = {name: place for place, name in enumerate(PUBLIC_STATES, len(FLOW) + 1)}


def _template(plan: Plan) -> list[Any]:
    packed = pack_plan(plan, Args(), frozenset())
    # A set has another order in each process, and all are to write the same library.
    packed[_STATES] = sorted(packed[_STATES])
    return packed


def _places(names: tuple[str, ...] | frozenset[str]) -> tuple[int, ...]:
    return tuple(_COUNTED[name] for name in PUBLIC_STATES if name in names)


def graph_tables() -> dict[str, Any]:
    """By the names they have in the library."""
    waiting = Record(execution_id="", namespace="", lane="")
    return {
        "MARK": _MARK,
        "RELEASE_NOW": _template(release_plan(waiting, 1)),
        "RELEASE_LATER": _template(release_plan(waiting, -1)),
        "SKIP": _template(skip_plan("")),
        "CANCEL_SIBLING": _template(cancel_sibling_plan("", _MARK)),
        "CANCEL": _template(cancel("", _MARK, "flow_cascade", None)),
        "OUTCOMES": OUTCOMES,
        "PUBLIC_BLOCKED": PUBLIC_BLOCKED,
        "COUNT_PLACES": _COUNTED,
        "FLOW_RANGES": FLOW_RANGES,
        "LIVE_PLACES": _places(graph.LIVE_PUBLIC),
        "UNHAPPY_PLACES": _places(graph.UNHAPPY),
        "CANCELLED_BY_POLICY": graph.CANCELLED_BY_POLICY,
    }
