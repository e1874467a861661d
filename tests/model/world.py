"""The machine's ground: two stores, a clock, and the things random calls are about."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant

from flowfabric.backend.base import Backend
from flowfabric.backend.types import Filter
from flowfabric.core.plan import Plan
from flowfabric.engine.attempts.claimed import Claimed
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.errors import FlowFabricError
from flowfabric.operations.workers import Grant
from tests.clock import VirtualClock
from tests.model.comparing import NAMESPACES, Known, compare, walk
from tests.model.references import reference_of
from tests.model.sides import Answer, Pair, Side

T = TypeVar("T")
Open = Callable[[Callable[[], int], Path], Backend]


class World(RuleBasedStateMachine):
    """Calls go to both stores; after every step both must show the same.

    Nothing a call gave is ever forgotten: holdings and grants that were overtaken long ago are
    presented again and again.
    """

    def __init__(self, open_store: Open) -> None:
        super().__init__()
        self.clock = VirtualClock()
        self.known = Known()
        self.executions: list[str] = []
        self.holdings: list[LeaseProof] = []
        self.grants: list[tuple[Grant, tuple[str, str]]] = []
        self.members: dict[str, tuple[str, ...]] = {}
        self._directory = TemporaryDirectory()
        # Not made the thread's own: other tests have loops, too.
        self._loop = asyncio.new_event_loop()
        self.pair = self._until_done(self._open(open_store))

    async def _open(self, open_store: Open) -> Pair:
        """In the loop: an engine listens from the start, which a store may need one for."""
        directory = Path(self._directory.name)
        subject = open_store(self.clock, directory)
        pair = Pair(reference_of(subject, self.clock, directory), subject, self.clock)
        await pair.open()
        return pair

    def teardown(self) -> None:
        try:
            self._until_done(self.pair.close())
        finally:
            self._loop.close()
            self._directory.cleanup()

    @invariant()
    def stores_agree(self) -> None:
        self._until_done(compare(self.pair, self.known))

    def both(self, call: Callable[[Side], Awaitable[T]]) -> Answer[T]:
        return self._until_done(self.pair.both(call))

    def run(self, call: Awaitable[T]) -> T:
        return self._until_done(call)

    def _until_done(self, call: Awaitable[T]) -> T:
        """A runner would set a handler of signals for every call, of which there are thousands."""
        return self._loop.run_until_complete(call)

    def apply(self, plans: Sequence[Plan]) -> None:
        """Hand plans to the stores themselves, as one batch."""

        async def call(side: Side) -> list[object]:
            return told(await side.backend.apply(plans))

        self.both(call)

    def pick(self, data: st.DataObject, found: Sequence[T]) -> T | None:
        """One of the things there are, the newest as likely as all others together."""
        if not found:
            return None
        return data.draw(st.one_of(st.sampled_from(found[-3:]), st.sampled_from(found)))

    def state_of(self, execution_id: str) -> str:
        (seen,) = self.run(self.pair.reference.backend.read([execution_id], frozenset()))
        return seen.record.state if seen else ""

    def hold(self, claimed: Sequence[Claimed] | None) -> None:
        self.holdings += [one.proof for one in claimed or ()]

    def at(self, offset: int | None) -> int | None:
        """An instant as a caller names it, from how far away it is."""
        return None if offset is None else self.clock() + offset

    async def next_due(self) -> int:
        """The next instant at which anything happens by itself, 0 when there is none."""
        now = self.clock()
        found = [flow.due_at for flow in await self._flows() if flow is not None]
        for namespace in NAMESPACES:
            records = await walk(self.pair.reference, Filter(namespace=namespace))
            found += [instant for record in records for instant in (record.due_at, record.purge_at)]
        return min((instant for instant in found if instant > now), default=0)

    async def _flows(self) -> Sequence[Any]:
        return await self.pair.reference.backend.flows(sorted(self.known.flows))


def told(answers: Sequence[object]) -> list[object]:
    """Answers of a batch in a form that can be compared: errors by class and words."""
    return [
        (type(answer), str(answer)) if isinstance(answer, FlowFabricError) else answer
        for answer in answers
    ]
