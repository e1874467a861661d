"""Replaying a part of a flow: members that ended badly, and what was skipped because of them."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from flowfabric.backend.flow_store import EdgeQuery, MemberQuery
from flowfabric.core.bounds import MAX_NAMED, check_number
from flowfabric.core.cycles import in_order
from flowfabric.core.flow_checks import check_editable, check_member
from flowfabric.core.ids import parse_execution_id, parse_uuid
from flowfabric.core.rules.operators import ReplayRequest
from flowfabric.core.states import State
from flowfabric.engine.deciding import read_flow
from flowfabric.engine.deps import Deps
from flowfabric.engine.executions.replay import Replays
from flowfabric.errors import ExecutionNotFound, FlowFabricError, InvalidInput
from flowfabric.operations import flows as declared
from flowfabric.operations.answers import error_body
from flowfabric.operations.declaration import implements
from flowfabric.operations.flows import FlowReplayed, ReplayedMember

_PAGE: Final = 1_000
_NODES_A_READ: Final = 50
# What ended without success, and what was skipped for it: all that a whole replay runs again.
_UNHAPPY: Final[tuple[State, ...]] = ("failed", "cancelled", "expired", "skipped")


class FlowReplays:
    def __init__(self, deps: Deps, replays: Replays) -> None:
        self._deps = deps
        self._replays = replays

    @implements(declared.Flows.replay_flow)
    async def replay_flow(
        self,
        flow_id: str,
        execution_ids: Sequence[str] | None = None,
        reason: str = "",
        requested_by: str = "",
        *,
        visible: frozenset[str] | None = None,
    ) -> FlowReplayed:
        """Replay the named members (by default all that ended failed, cancelled or expired), then
        what was skipped behind them, every one after those it depends on and in its own step."""
        parse_uuid(flow_id, "flow_id")
        named = self._named(execution_ids)
        check_editable(flow_id, await read_flow(self._deps, flow_id))
        strangers: list[ReplayedMember] = []
        if named is None:
            chosen = await self._unhappy(flow_id)
        else:
            chosen, strangers = await self._sorted_out(flow_id, named, visible)
        edges = await self._reach(flow_id, chosen)
        members = dict.fromkeys([*chosen, *(target for _, target in edges)])
        request = ReplayRequest(reason, requested_by)
        replayed = [await self._replay(one, request) for one in in_order(members, edges)]
        return FlowReplayed(flow_id, [*strangers, *replayed])

    def _named(self, execution_ids: object) -> list[str] | None:
        if execution_ids is None:
            return None
        if not isinstance(execution_ids, list | tuple):
            raise InvalidInput("execution_ids: expected a list of ids")
        check_number(execution_ids, "execution_ids", MAX_NAMED)
        ids = [parse_execution_id(one, self._deps.counts) for one in execution_ids]
        return list(dict.fromkeys(ids))

    async def _unhappy(self, flow_id: str) -> list[str]:
        found: list[str] = []
        after: tuple[int, str] | None = None
        while True:
            query = MemberQuery(flow_id=flow_id, states=_UNHAPPY, after=after)
            page = await self._deps.store.backend.members(query)
            found += [one.execution_id for one in page]
            if len(page) < query.limit:
                return found
            after = (page[-1].created_at, page[-1].execution_id)

    async def _sorted_out(
        self, flow_id: str, named: Sequence[str], visible: frozenset[str] | None
    ) -> tuple[list[str], list[ReplayedMember]]:
        """The members among the named ones, and the answers for those that are none. One that the
        caller may not see is answered like one that does not exist."""
        members: list[str] = []
        strangers: list[ReplayedMember] = []
        for execution_id in named:
            seen = await self._deps.store.read(execution_id)
            try:
                if seen is None or (visible is not None and seen.record.namespace not in visible):
                    raise ExecutionNotFound(execution_id)
                check_member(flow_id, execution_id, seen.record)
            except FlowFabricError as refusal:
                strangers.append(ReplayedMember(execution_id, error=error_body(refusal)))
            else:
                members.append(execution_id)
        return members, strangers

    async def _reach(self, flow_id: str, start: Iterable[str]) -> list[tuple[str, str]]:
        """The edges from the chosen members to skipped ones, and on from there."""
        edges: list[tuple[str, str]] = []
        known = set(start)
        frontier = list(known)
        while frontier:
            found = await self._edges_from(flow_id, frontier)
            skipped = await self._skipped({target for _, target in found} - known)
            edges += [edge for edge in found if edge[1] in known or edge[1] in skipped]
            known |= skipped
            frontier = list(skipped)
        return edges

    async def _edges_from(self, flow_id: str, sources: Sequence[str]) -> list[tuple[str, str]]:
        edges: list[tuple[str, str]] = []
        queries = deque(EdgeQuery(flow_id, "source", source, "", _PAGE) for source in sources)
        while queries:
            batch = [queries.popleft() for _ in range(min(len(queries), _NODES_A_READ))]
            pages = await self._deps.store.backend.edges(batch)
            for query, page in zip(batch, pages, strict=True):
                edges += [(edge.source, edge.target) for edge in page]
                if len(page) == query.limit:
                    queries.append(msgspec.structs.replace(query, after=page[-1].edge_id))
        return edges

    async def _skipped(self, ids: Iterable[str]) -> set[str]:
        wanted = sorted(ids)
        found: set[str] = set()
        for start in range(0, len(wanted), _PAGE):
            seen = await self._deps.store.backend.read(wanted[start : start + _PAGE], frozenset())
            found |= {
                one.record.execution_id for one in seen if one and one.record.state == "skipped"
            }
        return found

    async def _replay(self, execution_id: str, request: ReplayRequest) -> ReplayedMember:
        try:
            state = await self._replays.replay(execution_id, request)
        except FlowFabricError as refusal:
            return ReplayedMember(execution_id, error=error_body(refusal))
        return ReplayedMember(execution_id, state)
