"""The coalescer: calls that arrive in one turn of the event loop become one batch of the store."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from itertools import chain
from typing import Any, Final, Generic, TypeVar

from flowfabric.backend.base import Answered, Backend
from flowfabric.backend.flow_store import GraphCreated, GraphRefused
from flowfabric.backend.types import (
    CLUSTER_SLOTS,
    Append,
    Appended,
    ClaimAnswer,
    ClaimRequest,
    CreateAnswer,
    FrameRange,
    JournalAppend,
    Journaled,
    NamedClaim,
    Offer,
    Seen,
    StreamRefused,
    With,
)
from flowfabric.core.limits.asks import (
    Admission,
    AdmitAnswer,
    Extend,
    Freed,
    Spend,
    SpendAnswer,
    Vacate,
)
from flowfabric.core.new_execution import NewExecution, NewGraph
from flowfabric.core.plan import (
    Answer,
    FlowAnswer,
    FlowPlan,
    Plan,
    Refused,
    check_flow_plan,
    check_plan,
)
from flowfabric.errors import FlowFabricError
from flowfabric.operations.streams import FramePage

I = TypeVar("I")  # noqa: E741
A = TypeVar("A")

MOST_ITEMS: Final = 200
MOST_CLAIMS: Final = 100
MOST_READS: Final = 1_000
MOST_RANGES: Final = 100
# Of reads, which are made once for all who ask for the same.
_ANY: Final = 100_000

_Place = Callable[[I], object]
_Waiting = tuple[I, asyncio.Future[A]]
_Run = Callable[[Sequence[I]], Awaitable[list[Answered[A]]]]
# An execution and the names of its documents.
_Wanted = tuple[str, Collection[str]]


class Gatherer(Generic[I, A]):
    """Collects single items until the loop's turn is over, then sends them together."""

    def __init__(
        self, run: _Run[I, A], most: int = MOST_ITEMS, place: _Place[I] | None = None
    ) -> None:
        """`place` keeps apart what lies on different servers, so that none waits for another."""
        self._run = run
        self._most = most
        self._place = place
        # Batches that still take items, by their place, until they are sent.
        self._open: dict[object, list[_Waiting[I, A]]] = {}
        # Batches in flight. A caller may give up waiting; its item is sent all the same.
        self._in_flight: dict[int, asyncio.Task[Any] | None] = {}

    def submit(self, item: I) -> asyncio.Future[A]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[A] = loop.create_future()
        place = self._place and self._place(item)
        batch = self._open.get(place)
        # One task for each full batch, so that a later item does not overtake an earlier one.
        if batch is None or len(batch) == self._most:
            batch = self._open[place] = []
            self._in_flight[id(batch)] = loop.create_task(self._send(self._run, batch, place))
        batch.append((item, future))
        return future

    async def submit_promptly(self, item: I) -> A:
        """Without waiting for others to come along, unless some are under way. Only for tasks that
        nobody cancels: the caller itself carries the call."""
        if self._in_flight:
            return await self.submit(item)
        self._in_flight[id(item)] = None
        try:
            (answer,) = await self._run([item])
        finally:
            del self._in_flight[id(item)]
        if isinstance(answer, FlowFabricError):
            raise answer
        return answer

    async def submit_all(self, items: Sequence[Answered[I]]) -> list[Answered[A]]:
        """What somebody has gathered already, with one answer or error for each; an item that is an
        error stays one."""
        good = [item for item in items if not isinstance(item, FlowFabricError)]
        loop = asyncio.get_running_loop()
        batch = [(good, loop.create_future())]
        self._in_flight[id(batch)] = loop.create_task(self._send(self._run_all, batch))
        return in_places(items, await batch[0][1])

    async def _run_all(self, gathered: Sequence[Sequence[I]]) -> list[Answered[list[Answered[A]]]]:
        (items,) = gathered
        answers: list[Answered[A]] = []
        for start in range(0, len(items), MOST_ITEMS):
            part = items[start : start + MOST_ITEMS]
            try:
                answers += await self._run(part)
            except FlowFabricError as fault:
                answers += [fault] * len(part)
        return [answers]

    async def _send(
        self, run: _Run[Any, Any], batch: list[_Waiting[Any, Any]], place: object = None
    ) -> None:
        """At the end of the turn, with as many as go together. Everybody who still waits then gets
        the answer of their item."""
        if self._open.get(place) is batch:
            del self._open[place]
        try:
            answers = await run([item for item, _ in batch])
        except BaseException as fault:
            for _, future in batch:
                if not future.done():
                    future.set_exception(fault)
            if not isinstance(fault, Exception):
                raise
            return
        finally:
            del self._in_flight[id(batch)]
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, FlowFabricError):
                future.set_exception(answer)
            else:
                future.set_result(answer)


def in_places(items: Sequence[Answered[I]], answers: Iterable[A]) -> list[A | FlowFabricError]:
    """The answers of those items that could be sent, among the errors of the others."""
    found = iter(answers)
    return [item if isinstance(item, FlowFabricError) else next(found) for item in items]


class Store:
    """A backend as the engine uses it: one item a call, gathered behind the scenes.

    An item's own error is raised; everything else a backend offers is reached through `backend`.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        described = backend.describe()
        self._is_spread = described.spread == CLUSTER_SLOTS
        at, most = self._place, described.together
        most_claims = min(most, MOST_CLAIMS)
        creates = Gatherer[NewExecution, CreateAnswer](
            backend.create, most, at(lambda new: new.execution_id)
        )
        self.create, self.create_all = creates.submit, creates.submit_all
        self.create_graph = Gatherer[NewGraph, GraphCreated | GraphRefused](
            self._create_graphs, most, (lambda one: one.flow.flow_id) if self._is_spread else None
        ).submit
        self._plans = Gatherer[Plan, Answer](backend.apply, most, at(lambda plan: plan.target))
        self._flow_plans = Gatherer[FlowPlan, FlowAnswer](
            backend.apply_flows, place=(lambda plan: plan.flow_id) if self._is_spread else None
        )
        claims = Gatherer[ClaimRequest, ClaimAnswer](
            backend.claim, most_claims, (lambda one: one) if self._is_spread else None
        )
        self.claim, self.claim_promptly = claims.submit, claims.submit_promptly
        self.lease = Gatherer[NamedClaim, Offer | Refused](
            backend.lease, most_claims, at(lambda named: named.execution_id)
        ).submit
        self.append = Gatherer[Append, Appended | StreamRefused](
            backend.append, most, at(lambda one: one.execution_id)
        ).submit
        self.frames = Gatherer[FrameRange, FramePage](
            _each_once(backend.frames, MOST_RANGES), _ANY, at(lambda one: one.execution_id)
        ).submit
        self.journal = Gatherer[JournalAppend, Journaled | Refused](
            backend.journal, most, at(lambda one: one.execution_id)
        ).submit
        self.spend = Gatherer[Spend, SpendAnswer](
            backend.spend, place=(lambda one: one.budget_id) if self._is_spread else None
        ).submit
        self.admit = Gatherer[Admission, AdmitAnswer](backend.admit).submit
        self.extend = Gatherer[Extend, bool](backend.extend).submit
        self.vacate = Gatherer[Vacate, Freed](backend.vacate).submit
        self._clock = Gatherer[None, int](self._now, _ANY)
        self._reads: dict[frozenset[With], Gatherer[_Wanted, Seen | None]] = {}

    async def _create_graphs(
        self, items: Sequence[NewGraph]
    ) -> list[Answered[GraphCreated | GraphRefused]]:
        return await self.backend.create_graph(items)

    def _place(self, execution_of: Callable[[I], str]) -> _Place[I] | None:
        if not self._is_spread:
            return None
        return lambda item: execution_of(item).partition("}")[0]

    def apply(self, plan: Plan) -> asyncio.Future[Answer]:
        check_plan(plan)
        return self._plans.submit(plan)

    def apply_all(self, plans: Sequence[Answered[Plan]]) -> Awaitable[list[Answered[Answer]]]:
        for plan in plans:
            if isinstance(plan, Plan):
                check_plan(plan)
        return self._plans.submit_all(plans)

    def apply_flow(self, plan: FlowPlan) -> asyncio.Future[FlowAnswer]:
        check_flow_plan(plan)
        return self._flow_plans.submit(plan)

    def now(self) -> asyncio.Future[int]:
        """The store's clock."""
        return self._clock.submit(None)

    async def _now(self, callers: Sequence[None]) -> list[Answered[int]]:
        return [await self.backend.now()] * len(callers)

    def read(
        self,
        execution_id: str,
        include: frozenset[With] = frozenset(),
        documents: Collection[str] = (),
    ) -> asyncio.Future[Seen | None]:
        """A record with what is asked for beside it. Others who ask for the same execution in the
        same turn may have more of its documents read, never fewer."""
        gatherer = self._reads.get(include)
        if gatherer is None:
            gatherer = self._reads[include] = Gatherer(
                self._read_with(include), _ANY, self._place(lambda wanted: wanted[0])
            )
        return gatherer.submit((execution_id, documents))

    def _read_with(self, include: frozenset[With]) -> _Run[_Wanted, Seen | None]:
        async def run(wanted: Sequence[_Wanted]) -> list[Answered[Seen | None]]:
            named: dict[str, set[str]] = {}
            for execution_id, documents in wanted:
                if documents:
                    named.setdefault(execution_id, set()).update(documents)

            async def read(ids: Sequence[str]) -> list[Answered[Seen | None]]:
                return [*await self.backend.read(ids, include, named)]

            return await _each_once(read, MOST_READS)([one for one, _ in wanted])

        return run


def _each_once(run: _Run[I, A], most: int) -> _Run[I, A]:
    """Reads that many ask for at once are made once: all who follow one thing wake together."""

    async def run_once(items: Sequence[I]) -> list[Answered[A]]:
        asked = list(dict.fromkeys(items))
        if len(asked) <= most:
            answers = await run(asked)
        else:
            parts = (asked[at : at + most] for at in range(0, len(asked), most))
            answers = list(chain.from_iterable(await asyncio.gather(*map(run, parts))))
        found = dict(zip(asked, answers, strict=True))
        return [found[item] for item in items]

    return run_once
