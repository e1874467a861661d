"""The children of an execution, as its readers see them."""

from typing import Final, TypeVar

import msgspec

from flowfabric.backend.flow_store import MemberQuery
from flowfabric.engine.deps import Deps
from flowfabric.operations.execution_queries import Child, ExecutionInfo, Explanation

MOST_CHILDREN: Final = 100

S = TypeVar("S", ExecutionInfo, Explanation)


async def with_children(deps: Deps, view: S) -> S:
    """The same with the first children; an execution outside of any flow has none."""
    if not view.flow_id:
        return view
    query = MemberQuery(flow_id=view.flow_id, parent_id=view.execution_id, limit=MOST_CHILDREN + 1)
    found = await deps.store.backend.members(query)
    children = tuple(Child(one.execution_id, one.public_state) for one in found[:MOST_CHILDREN])
    more = len(found) > MOST_CHILDREN
    return msgspec.structs.replace(view, children=children, more_children=more)
