"""The part of the protocol that is about flows: whole graphs, edits, settling, and their reads."""

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias, TypeVar

import msgspec

from flowfabric.core.graph import Edge, Flow, Group
from flowfabric.core.new_execution import NewGraph
from flowfabric.core.plan import FlowAnswer, FlowPlan
from flowfabric.core.record import Record
from flowfabric.core.states import State
from flowfabric.errors import FlowFabricError

T = TypeVar("T")
# One answer of a batch, or the error that belongs to that item alone.
Answered: TypeAlias = T | FlowFabricError


class GraphCreated(msgspec.Struct, frozen=True):
    """The flow after the call: whether this call wrote its header, whether it was whole already
    and so was left as it is, and whether it has more to do."""

    flow: Flow
    is_new: bool
    was_whole: bool = False
    more: bool = False


class GraphRefused(msgspec.Struct, frozen=True):
    """Nothing was written: the flow is cancelled or has another graph, or an id is taken by the
    record or edge that is shown."""

    flow: Flow | None
    record: Record | None = None
    edge: Edge | None = None


class MemberPlace(msgspec.Struct, frozen=True):
    """A member of a flow in the order of creation, as a listing shows it."""

    created_at: int
    execution_id: str
    public_state: str


class MemberQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Members of a flow that come after the place `after`: those in `states`, or all if it is
    empty. With `parent_id` the children of that member, in any state."""

    flow_id: str
    parent_id: str = ""
    after: tuple[int, str] | None = None
    states: tuple[State, ...] = ()
    limit: int = 1_000


class EdgeQuery(msgspec.Struct, frozen=True):
    """Edges of a flow in the order of their ids, after the id `after`: all of them, those that
    leave or reach the member `id`, or the edge `id` alone."""

    flow_id: str
    of: Literal["source", "target", "flow", "edge"]
    id: str = ""
    after: str = ""
    limit: int = 1_000


class FlowStore(Protocol):
    """A flow lives in one partition, so that each item is one step, however many rows it changes.
    What a step may not do for its bound is remembered on the flow and done by `settle`."""

    async def create_graph(
        self, items: Sequence[NewGraph], /
    ) -> list[Answered[GraphCreated | GraphRefused]]:
        """Write a whole graph, or one chunk of it; what is there already stays."""
        ...

    async def apply_flows(self, plans: Sequence[FlowPlan], /) -> list[Answered[FlowAnswer]]: ...

    async def settle(self, flow_ids: Sequence[str], /) -> list[Answered[bool]]:
        """Go on with what bounded steps left over on these flows, cancels included; whether
        another such step would do more."""
        ...

    async def flows(self, ids: Sequence[str], /) -> list[Flow | None]: ...

    async def flows_in(self, partition: int, after: str, limit: int) -> list[Flow]:
        """Flows of a partition in the order of their ids, after the id `after`."""
        ...

    async def flows_by_age(
        self, after: tuple[int, str] | None, limit: int, *, newest: bool = True
    ) -> list[Flow]:
        """Flows of all partitions ordered by (created_at, flow id), the newest first unless told
        otherwise, after the place `after`."""
        ...

    async def members(self, query: MemberQuery) -> list[MemberPlace]: ...

    async def edges(self, queries: Sequence[EdgeQuery], /) -> list[tuple[Edge, ...]]: ...

    async def groups(self, targets: Sequence[str], /) -> list[Group | None]: ...
