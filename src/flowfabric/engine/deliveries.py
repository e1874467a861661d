"""The way of signals to their execution: one after the other, as many in one step as are there.

Those that wait for one execution are decided in a row, each from what the one before it made of
the record, and applied as one batch. Should another process have changed the record meanwhile, the
whole row is refused and decided again.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from flowfabric.backend.types import Seen
from flowfabric.core.documents import (
    SUSPENSION,
    Document,
    signal_key_name,
    signal_name,
    waitpoint_name,
)
from flowfabric.core.plan import Answer, Applied, Plan
from flowfabric.core.record import Record
from flowfabric.core.rules.operators import note
from flowfabric.core.rules.signals import Accepted, Duplicate, Target, Terms, deliver, repeat
from flowfabric.core.step import step
from flowfabric.core.suspensions import Signal, Waitpoint, known_signal
from flowfabric.engine.deciding import lost_every_race
from flowfabric.engine.deps import MOST_DECISIONS, Deps
from flowfabric.errors import (
    ExecutionNotFound,
    FlowFabricError,
    InvalidToken,
    MissingToken,
    TokenExpired,
)

MOST_AT_ONCE: Final = 64
_PAUSE_S: Final = 0.002
# Every write of a record makes decisions under way lose; bad tokens may cause one a second.
_NOTED_EVERY_MS: Final = 1_000

Answered = Accepted | Duplicate


class Scene:
    """An execution and its documents as they will be once the plans decided so far are applied."""

    def __init__(self, seen: Seen) -> None:
        self.record: Record = seen.record
        self.documents: dict[str, Document] = dict(seen.documents)
        self.now = seen.now
        self._is_foreseen = False

    def foresee(self, plan: Plan) -> Plan:
        """Take a plan as applied; the answer is the plan to apply, which the ones before it bind
        even if by itself it would do whatever the record became."""
        if self._is_foreseen and not plan.guard.version:
            guard = msgspec.structs.replace(plan.guard, version=self.record.version)
            plan = msgspec.structs.replace(plan, guard=guard)
        self._is_foreseen = True
        self.record = step(self.record, plan, self.now).after
        for name, body in plan.documents.items():
            if body is not None:
                self.documents[name] = Document(body, self.now, self.now)
        return plan


class Delivery(msgspec.Struct, frozen=True):
    """A signal on its way. `admit` finds its waitpoint, or refuses the sender."""

    signal: Signal
    terms: Terms
    admit: Callable[[Scene], Waitpoint]

    def names(self) -> Iterator[str]:
        """The documents it is decided from."""
        own, key = self.signal.waitpoint_id, self.signal.idempotency_key
        yield SUSPENSION
        yield waitpoint_name(own)
        yield signal_name(own, self.signal.signal_id)
        if key and self.terms.dedup_ttl_ms:
            yield signal_key_name(own, key)

    def decide(self, scene: Scene) -> tuple[Plan | None, Answered | FlowFabricError]:
        try:
            waitpoint = self.admit(scene)
            known = self._known(scene)
            if known:
                return repeat(scene.record, self.signal, known)
            target = Target(scene.record, scene.now, waitpoint, scene.documents)
            return deliver(target, self.signal, self.terms)
        except (MissingToken, InvalidToken, TokenExpired) as fault:
            return _noted(scene), fault
        except FlowFabricError as fault:
            return None, fault

    def _known(self, scene: Scene) -> str:
        """The signal this one repeats, by its key or by its id."""
        own, key = self.signal.waitpoint_id, self.signal.idempotency_key
        found = ""
        if key and self.terms.dedup_ttl_ms:
            found = known_signal(scene.documents.get(signal_key_name(own, key)), scene.now)
        if found or signal_name(own, self.signal.signal_id) not in scene.documents:
            return found
        return self.signal.signal_id


def _noted(scene: Scene) -> Plan | None:
    """Remember that a token failed, unless that was remembered just now."""
    since = scene.now - scene.record.last_hmac_validation_failed_at
    if since < _NOTED_EVERY_MS:
        return None
    return note(scene.record.execution_id, "last_hmac_validation_failed_at")


class _Item:
    __slots__ = ("answer", "delivery", "losses")

    def __init__(self, delivery: Delivery, answer: asyncio.Future[Answered]) -> None:
        self.delivery = delivery
        self.answer = answer
        self.losses = 0

    def settle(self, outcome: Answered | BaseException) -> None:
        if self.answer.done():
            return
        if isinstance(outcome, asyncio.CancelledError):
            self.answer.cancel()
        elif isinstance(outcome, BaseException):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)


_Decided = tuple[_Item, asyncio.Future[Answer] | None, Answered | FlowFabricError]


class Deliveries:
    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self._waiting: dict[str, deque[_Item]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, execution_id: str, delivery: Delivery) -> asyncio.Future[Answered]:
        """Send a signal on its way; it arrives even if nobody waits for the answer."""
        item = _Item(delivery, asyncio.get_running_loop().create_future())
        waiting = self._waiting.get(execution_id)
        if waiting is not None:
            waiting.append(item)
            return item.answer
        waiting = self._waiting[execution_id] = deque([item])
        task = asyncio.ensure_future(self._work(execution_id, waiting))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return item.answer

    async def drain(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _work(self, execution_id: str, waiting: deque[_Item]) -> None:
        try:
            while waiting:
                lost = await self._round(execution_id, waiting)
                waiting.extendleft(reversed(lost))
                turn = lost[0].losses - 1 if lost else 0
                await asyncio.sleep(self._deps.chance() * _PAUSE_S * turn)
        finally:
            del self._waiting[execution_id]
            for item in waiting:
                item.answer.cancel()

    async def _round(self, execution_id: str, waiting: deque[_Item]) -> list[_Item]:
        """Deliver what waits; answers what has to be tried again."""
        async with self._deps.locks.of(execution_id):
            batch = [waiting.popleft() for _ in range(min(len(waiting), MOST_AT_ONCE))]
            try:
                return await self._deliver(execution_id, batch)
            except BaseException as fault:
                for item in batch:
                    item.settle(fault)
                if not isinstance(fault, Exception):
                    raise
                return []

    async def _deliver(self, execution_id: str, batch: list[_Item]) -> list[_Item]:
        names = {name for item in batch for name in item.delivery.names()}
        seen = await self._deps.store.read(execution_id, documents=names)
        if seen is None:
            raise ExecutionNotFound(execution_id)
        scene = Scene(seen)
        decided = [self._decide(scene, item) for item in batch]
        flights = [flight for _, flight, _ in decided if flight is not None]
        await asyncio.gather(*flights, return_exceptions=True)
        return _settle(execution_id, decided)

    def _decide(self, scene: Scene, item: _Item) -> _Decided:
        plan, outcome = item.delivery.decide(scene)
        if plan is None:
            return item, None, outcome
        return item, self._deps.store.apply(scene.foresee(plan)), outcome


def _settle(execution_id: str, decided: list[_Decided]) -> list[_Item]:
    """Give every sender its answer. Behind a plan that was refused nothing is true any more."""
    lost: list[_Item] = []
    holds = True
    for item, flight, outcome in decided:
        fault = flight.exception() if flight is not None else None
        holds = holds and fault is None
        holds = holds and (flight is None or isinstance(flight.result(), Applied))
        if fault is not None:
            item.settle(fault)
        elif holds:
            item.settle(outcome)
        elif item.losses + 1 >= MOST_DECISIONS:
            item.settle(lost_every_race(execution_id))
        else:
            item.losses += 1
            lost.append(item)
    return lost
