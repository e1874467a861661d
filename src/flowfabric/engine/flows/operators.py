"""What operators do to a whole flow: cancel it, and replay the members that ended badly."""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from flowfabric.backend.flow_store import EdgeQuery, MemberQuery
from flowfabric.core.bounds import MAX_NAMED, check_number
from flowfabric.core.flow_checks import check_editable, check_member, in_order
from flowfabric.core.graph import CancelPolicy, Flow, states_to_cancel
from flowfabric.core.ids import check_text, parse_execution_id, parse_uuid
from flowfabric.core.plan import FlowApplied
from flowfabric.core.record import Record
from flowfabric.core.rules.flows import abandon, cancel_flow
from flowfabric.core.states import State
from flowfabric.engine.deciding import read_flow
from flowfabric.engine.deps import Deps
from flowfabric.engine.executions.operators import Operators
from flowfabric.engine.flows.settling import Settling
from flowfabric.errors import ExecutionNotFound, FlowFabricError, FlowNotFound, InvalidInput
from flowfabric.operations import flows as declared
from flowfabric.operations.answers import error_body
from flowfabric.operations.declaration import implements
from flowfabric.operations.flows import (
    CancellationScheduled,
    FlowCancelled,
    FlowReplayed,
    MembersCancelled,
    PartiallyCancelled,
    ReplayedMember,
)

WAIT_S: Final = 120.0
MAX_MEMBERS_LISTED: Final = 1_000
_REASON_BYTES: Final = 4096
_PAGE: Final = 1_000
_NODES_A_READ: Final = 50
# What ended without success, and what was skipped for it: all that a whole replay runs again.
_UNHAPPY: Final[tuple[State, ...]] = ("failed", "cancelled", "expired", "skipped")

POLICIES: Final[dict[str, CancelPolicy]] = {
    "cancel_all": "cancel_all",
    "cancel_pending": "cancel_pending",
    "flow_only": "flow_only",
    "cancel_flow_only": "flow_only",
    "cancel_only_flow": "flow_only",
}


class FlowOperators:
    def __init__(
        self, deps: Deps, settling: Settling, operators: Operators, wait_s: float = WAIT_S
    ) -> None:
        self._deps = deps
        self._settling = settling
        self._operators = operators
        self._wait_s = wait_s

    @implements(declared.Flows.cancel_flow)
    async def cancel_flow(
        self,
        flow_id: str,
        cancellation_policy: str = "cancel_all",
        reason: str = "",
        *,
        wait: bool = False,
    ) -> FlowCancelled:
        """What one step does not reach goes on in the background."""
        parse_uuid(flow_id, "flow_id")
        chosen = _policy(cancellation_policy)
        check_text(reason, "reason", _REASON_BYTES)
        answer = await self._deps.store.apply_flow(cancel_flow(flow_id, chosen, reason))
        if not isinstance(answer, FlowApplied):
            if answer.flow is None:
                raise FlowNotFound(flow_id)
            return MembersCancelled(answer.flow.cancel_policy, await self._members(flow_id))
        if not answer.cancelled and not answer.more:
            return MembersCancelled(chosen, await self._members(flow_id))
        if wait:
            return await self._waited(answer)
        if answer.more:
            self._deps.on_more("", flow_id)
        members = await self._members(flow_id)
        return CancellationScheduled(chosen, answer.flow.node_count, members)

    async def give_up_submit(self, flow: Flow) -> None:
        """Cancel a graph whose submitter sends no more; one that came back meanwhile is let be."""
        answer = await self._deps.store.apply_flow(abandon(flow))
        if isinstance(answer, FlowApplied) and answer.more:
            await self._settling.settle(flow.flow_id)

    async def _waited(self, answer: FlowApplied) -> FlowCancelled:
        flow = answer.flow
        if answer.more:
            try:
                async with asyncio.timeout(self._wait_s):
                    await self._settling.settle(flow.flow_id)
            except (TimeoutError, FlowFabricError):
                # What is known now is the answer; the flow's timer goes on.
                pass
        members, states = await self._members(flow.flow_id), states_to_cancel(flow)
        left = await self._all_members(flow.flow_id, states) if states else ()
        if left:
            return PartiallyCancelled(flow.cancel_policy, members, tuple(left))
        return MembersCancelled(flow.cancel_policy, members)

    async def _members(self, flow_id: str) -> tuple[str, ...]:
        query = MemberQuery(flow_id=flow_id, limit=MAX_MEMBERS_LISTED)
        return tuple(one.execution_id for one in await self._deps.store.backend.members(query))

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
        """Replay the named members (by default all that ended failed, cancelled or expired, but no
        children, which their parents make again), then
        what was skipped behind them, every one after those it depends on and in its own step."""
        parse_uuid(flow_id, "flow_id")
        named = self._named(execution_ids)
        flow = check_editable(flow_id, await read_flow(self._deps, flow_id))
        strangers: list[ReplayedMember] = []
        if named is None:
            chosen = await self._all_members(flow_id, _UNHAPPY)
            if flow.child_counts:
                chosen = await self._without_children(chosen)
        else:
            chosen, strangers = await self._sorted_out(flow_id, named, visible)
        edges = await self._reach(flow_id, chosen)
        members = dict.fromkeys([*chosen, *(target for _, target in edges)])
        replayed = [
            await self._replay(one, reason, requested_by) for one in in_order(members, edges)
        ]
        return FlowReplayed(flow_id, [*strangers, *replayed])

    def _named(self, execution_ids: object) -> list[str] | None:
        if execution_ids is None:
            return None
        if not isinstance(execution_ids, list | tuple):
            raise InvalidInput("execution_ids: expected a list of ids")
        check_number(execution_ids, "execution_ids", MAX_NAMED)
        ids = [parse_execution_id(one, self._deps.counts) for one in execution_ids]
        return list(dict.fromkeys(ids))

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
        records = await self._records(sorted(ids))
        return {one.execution_id for one in records if one.state == "skipped"}

    async def _without_children(self, ids: Sequence[str]) -> list[str]:
        return [one.execution_id for one in await self._records(ids) if not one.parent_id]

    async def _records(self, ids: Sequence[str]) -> list[Record]:
        found: list[Record] = []
        for start in range(0, len(ids), _PAGE):
            seen = await self._deps.store.backend.read(ids[start : start + _PAGE], frozenset())
            found += [one.record for one in seen if one]
        return found

    async def _replay(self, execution_id: str, reason: str, requested_by: str) -> ReplayedMember:
        try:
            replayed = await self._operators.replay(execution_id, reason, requested_by)
        except FlowFabricError as refusal:
            return ReplayedMember(execution_id, error=error_body(refusal))
        return ReplayedMember(execution_id, replayed.public_state)

    async def _all_members(self, flow_id: str, states: tuple[State, ...]) -> list[str]:
        """Members in one of these states, in the order of members."""
        found: list[str] = []
        after: tuple[int, str] | None = None
        while True:
            query = MemberQuery(flow_id=flow_id, states=states, after=after)
            page = await self._deps.store.backend.members(query)
            found += [one.execution_id for one in page]
            if len(page) < query.limit:
                return found
            after = (page[-1].created_at, page[-1].execution_id)


def _policy(text: object) -> CancelPolicy:
    found = POLICIES.get(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidInput(f"cancellation_policy: expected one of {', '.join(POLICIES)}")
    return found
