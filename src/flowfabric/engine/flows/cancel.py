"""Cancelling a flow, and waiting until the members that covers have ended."""

import asyncio
from typing import Final

from flowfabric.backend.flow_store import MemberQuery
from flowfabric.core.graph import CancelPolicy, Flow, states_to_cancel
from flowfabric.core.ids import check_text, parse_uuid
from flowfabric.core.plan import FlowApplied
from flowfabric.core.rules.flows import abandon, cancel_flow
from flowfabric.engine.deps import Deps
from flowfabric.engine.flows.settling import Settling
from flowfabric.errors import FlowFabricError, FlowNotFound, InvalidInput
from flowfabric.operations import flows as declared
from flowfabric.operations.declaration import implements
from flowfabric.operations.flows import (
    CancellationScheduled,
    FlowCancelled,
    MembersCancelled,
    PartiallyCancelled,
)

WAIT_S: Final = 120.0
MAX_MEMBERS_LISTED: Final = 1_000
_REASON_BYTES: Final = 4096

POLICIES: Final[dict[str, CancelPolicy]] = {
    "cancel_all": "cancel_all",
    "cancel_pending": "cancel_pending",
    "flow_only": "flow_only",
    "cancel_flow_only": "flow_only",
    "cancel_only_flow": "flow_only",
}


class FlowCancels:
    def __init__(self, deps: Deps, settling: Settling, wait_s: float = WAIT_S) -> None:
        self._deps = deps
        self._settling = settling
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
        members, left = await self._members(flow.flow_id), await self._left(flow)
        if left:
            return PartiallyCancelled(flow.cancel_policy, members, left)
        return MembersCancelled(flow.cancel_policy, members)

    async def _members(self, flow_id: str) -> tuple[str, ...]:
        query = MemberQuery(flow_id=flow_id, limit=MAX_MEMBERS_LISTED)
        return tuple(one.execution_id for one in await self._deps.store.backend.members(query))

    async def _left(self, flow: Flow) -> tuple[str, ...]:
        """Members to cancel that are still live, in the order of members."""
        states = states_to_cancel(flow)
        found: list[str] = []
        after: tuple[int, str] | None = None
        while states:
            query = MemberQuery(flow_id=flow.flow_id, states=states, after=after)
            page = await self._deps.store.backend.members(query)
            found += [one.execution_id for one in page]
            if len(page) < query.limit:
                break
            after = (page[-1].created_at, page[-1].execution_id)
        return tuple(found)


def _policy(text: object) -> CancelPolicy:
    found = POLICIES.get(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidInput(f"cancellation_policy: expected one of {', '.join(POLICIES)}")
    return found
