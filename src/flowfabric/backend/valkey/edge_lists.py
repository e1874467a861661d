"""The lists a flow's edges are found in: all, those that leave a member, those that reach it.

Each is the text of its edges' ids in their order; a mark behind them says that there are more.
"""

from collections.abc import Iterable
from typing import Final

from flowfabric.core.graph import Edge
from flowfabric.core.ids import UUID_LENGTH, uuid_of

# By name, ids in their order.
EdgeLists = dict[str, list[str]]

# Behind the ids of a list of which there are more.
MORE: Final = "+"
# Names of lists begin with one of these.
ALL: Final = "e"
OUTGOING: Final = "o"
INCOMING: Final = "i"
_MORE_MARK: Final = MORE.encode()


def lists_of(edges: Iterable[Edge]) -> EdgeLists:
    lists: EdgeLists = {}
    for edge in edges:
        for name in (ALL, OUTGOING + uuid_of(edge.source), INCOMING + uuid_of(edge.target)):
            lists.setdefault(name, []).append(edge.edge_id)
    for ids in lists.values():
        ids.sort()
    return lists


def flat_lists(edges: Iterable[Edge]) -> list[str]:
    """Name and text in turn."""
    return [part for name, ids in lists_of(edges).items() for part in (name, "".join(ids))]


def ids_of(text: bytes) -> list[str]:
    ids = text.removesuffix(_MORE_MARK).decode(errors="replace")
    return [ids[start : start + UUID_LENGTH] for start in range(0, len(ids), UUID_LENGTH)]


def has_more(text: bytes) -> bool:
    return text.endswith(_MORE_MARK)
