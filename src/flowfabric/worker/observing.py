"""A worker's port that is watched, where no store in this process is: what a worker of a server
claimed, kept and finished."""

import time
from collections.abc import Sequence
from typing import Any, Final, cast

from flowfabric.operations.workers import ClaimOrder
from flowfabric.operations.workers import Registration
from flowfabric.errors import FlowFabricError
from flowfabric.ports.worker import Claim, Fail, Finish, Finished, FinishReply, Renewal, WorkerPort
from flowfabric.telemetry.observer import NOBODY, Observer

# By public state. An attempt that failed and is not over is tried again.
_OUTCOMES: Final = {"completed": "ok", "failed": "error", "cancelled": "cancelled"}


def observed_worker(port: WorkerPort, observer: Observer) -> WorkerPort:
    if observer is NOBODY:
        return port
    return cast(WorkerPort, _Observed(port, observer))


class _Observed:
    def __init__(self, port: WorkerPort, observer: Observer) -> None:
        self._port = port
        self._observer = observer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    async def claim(self, order: ClaimOrder) -> list[Claim]:
        started = time.perf_counter()
        claims = await self._port.claim(order)
        self._observer.claimed(order.lanes[0], time.perf_counter() - started)
        return claims

    async def renew(
        self, worker: Registration, renewals: Sequence[Renewal], lease_ms: int
    ) -> list[int | FlowFabricError]:
        answers = await self._port.renew(worker, renewals, lease_ms)
        for answer in answers:
            self._observer.renewed(isinstance(answer, int))
        return answers

    async def finish(self, finishes: Sequence[Finish], order: ClaimOrder | None) -> FinishReply:
        reply = await self._port.finish(finishes, order)
        for finish, answer in zip(finishes, reply.items, strict=True):
            if isinstance(answer, Finished) and not answer.replayed:
                self._tell(finish, answer)
        return reply

    def _tell(self, finish: Finish, answer: Finished) -> None:
        lane, outcome = finish.claim.lane_id, _OUTCOMES.get(answer.state)
        if outcome is not None:
            self._observer.attempted(lane, outcome)
            self._observer.ended(lane, answer.state, None)
        elif isinstance(finish.outcome, Fail):
            self._observer.attempted(lane, "retry")
