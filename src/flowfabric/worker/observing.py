"""The calls of a worker that are watched, where no store in this process is: what a worker of a
server claimed, kept and finished."""

import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, cast

from flowfabric.errors import FlowFabricError
from flowfabric.operations.workers import (
    Claim,
    ClaimOrder,
    ClaimReply,
    ClaimTerms,
    Fail,
    Finish,
    Finished,
    FinishReply,
    GrantClaim,
    Renewal,
    RenewReply,
)
from flowfabric.telemetry.observer import NO_OBSERVER, Observer
from flowfabric.worker.calls import WorkerCalls

# By public state. An attempt that failed and is not over is tried again.
_OUTCOMES: Final = {"completed": "ok", "failed": "error", "cancelled": "cancelled"}
_REMEMBERED: Final = 4_096


def observed_worker(calls: WorkerCalls, observer: Observer) -> WorkerCalls:
    if observer is NO_OBSERVER:
        return calls
    return cast(WorkerCalls, _Observed(calls, observer))


class _Observed:
    def __init__(self, calls: WorkerCalls, observer: Observer) -> None:
        self._calls = calls
        self._observer = observer
        # The lanes of leases, which are told with their ends.
        self._lanes: OrderedDict[str, str] = OrderedDict()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._calls, name)

    async def claim(self, order: ClaimOrder) -> ClaimReply | None:
        started = time.perf_counter()
        reply = await self._calls.claim(order)
        self._observer.claimed(order.lanes[0], time.perf_counter() - started)
        self._remember(reply.items if reply else ())
        return reply

    async def claim_granted(self, granted: GrantClaim) -> Claim:
        claim = await self._calls.claim_granted(granted)
        self._remember((claim,))
        return claim

    async def renew(
        self,
        worker_instance_id: str,
        lease_ms: int,
        items: Sequence[Renewal],
        namespace: str = "default",
    ) -> RenewReply:
        reply = await self._calls.renew(worker_instance_id, lease_ms, items, namespace)
        for answer in reply.items:
            self._observer.renewed(not isinstance(answer, FlowFabricError))
        return reply

    async def finish(self, items: Sequence[Finish], next: ClaimTerms | None = None) -> FinishReply:
        reply = await self._calls.finish(items, next)
        for finish, answer in zip(items, reply.items, strict=True):
            if isinstance(answer, Finished) and not answer.replayed:
                self._emit(finish, answer)
        self._remember(reply.claimed)
        return reply

    def _remember(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            self._lanes[claim.lease_id] = claim.lane_id
        while len(self._lanes) > _REMEMBERED:
            self._lanes.popitem(last=False)

    def _emit(self, finish: Finish, answer: Finished) -> None:
        lane, outcome = self._lanes.pop(finish.lease_id, ""), _OUTCOMES.get(answer.state)
        if outcome is not None:
            self._observer.attempted(lane, outcome)
            self._observer.ended(lane, answer.state, None)
        elif isinstance(finish.outcome, Fail):
            self._observer.attempted(lane, "retry")
