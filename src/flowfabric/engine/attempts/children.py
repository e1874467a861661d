"""Children that the holder of a lease gives up."""

import asyncio
from contextlib import suppress

from flowfabric.core.bounds import MAX_NAMED, check_number
from flowfabric.core.checks import check_lease
from flowfabric.core.ids import check_text, parse_execution_id
from flowfabric.core.members import LONG_REASON, PARENT_END
from flowfabric.core.record import Record
from flowfabric.core.states import FINAL
from flowfabric.engine.attempts.outcomes import Outcomes
from flowfabric.engine.deps import Deps
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.errors import ExecutionNotActive, ExecutionNotInFlow
from flowfabric.operations.attempts import CancelChildren, ChildrenCancelled, HeldAttempts
from flowfabric.operations.declaration import implements


class HeldChildren:
    """What the holder of a lease does to its children."""

    def __init__(self, deps: Deps, outcomes: Outcomes) -> None:
        self._deps = deps
        self._outcomes = outcomes

    @implements(HeldAttempts.cancel_children)
    async def cancel_children(self, order: CancelChildren) -> ChildrenCancelled:
        proof, reason = self._deps.leases.proof(order), order.reason
        check_number(order.children, "children", MAX_NAMED)
        check_text(reason, "reason", LONG_REASON)
        fence = await self._deps.fence_of(proof, may_override=False)
        parent, now = await self._deps.record(proof.execution_id)
        check_lease(parent, fence, now)
        left = [one for one in await self._own(parent, order.children) if one.state not in FINAL]
        await asyncio.gather(*(self._cancel(one.execution_id, reason) for one in left))
        return ChildrenCancelled(count=len(left))

    async def _own(self, parent: Record, children: tuple[str, ...]) -> list[Record]:
        for child in children:
            parse_execution_id(child, self._deps.counts)
        found = await self._deps.store.backend.read(children, frozenset())
        records = [one.record if one else None for one in found]
        for child, record in zip(children, records, strict=True):
            if record is None or record.parent_id != parent.execution_id:
                raise ExecutionNotInFlow(f"{child} is no child of {parent.execution_id}")
        return [record for record in records if record is not None]

    async def _cancel(self, child: str, reason: str) -> None:
        with suppress(ExecutionNotActive):
            await self._outcomes.cancel(LeaseProof(child, source=PARENT_END), reason)
