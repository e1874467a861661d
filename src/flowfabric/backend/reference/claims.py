"""Mechanisms `claim` and `lease`: choose the best waiting records and lease them in one step; and
`apply` and `finish`: plans, alone or with a claim behind them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from heapq import heapify, heappop, heapreplace, nsmallest
from math import inf
from typing import Final

from flowfabric.backend.reference.reads import upstreams_of
from flowfabric.backend.reference.tables import BLOBS, DOCUMENTS, RECORDS, QueueHead, Tables
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.work import attempt
from flowfabric.backend.types import ClaimAnswer, ClaimRequest, Finished, NamedClaim, Offer
from flowfabric.core.apply import apply
from flowfabric.core.documents import SUSPENSION
from flowfabric.core.graph import is_cancelled_by_flow
from flowfabric.core.lease import (
    QUEUE_PAGE,
    RESERVATION_MS,
    SPARE_LOOKS,
    GrantTerms,
    LeaseTerms,
    is_exhausted,
    lease,
    may_lease,
    paused_by_suspension,
)
from flowfabric.core.members import move_member
from flowfabric.core.plan import Answer, Plan, Refused
from flowfabric.core.queues import (
    MOST_FOREIGN,
    MOST_NAMED,
    QueueFilter,
    queue_filter,
    turn_of,
)
from flowfabric.core.record import Record
from flowfabric.core.rules.operators import grant
from flowfabric.core.transition import Transition, transition
from flowfabric.core.views import Key

# How many queues of a lane the first look shows; every further one shows more.
_FIRST_HEADS: Final = 16
# A place before all others.
_UNKNOWN: Final = (-inf, "")


class Queues:
    """The claimable views as one batch of claims sees them: each is read once, in order, and what
    a claim took is not offered to the next."""

    def __init__(self, tx: Transaction, requests: Sequence[ClaimRequest]) -> None:
        self._tx = tx
        self._queues: dict[tuple[str, str, str], _Queue] = {}
        self._lanes: dict[tuple[str, str, QueueFilter], _Lane] = {}
        # How much the batch may still take: no queue is read much further, and inputs of what will
        # be leased are loaded together.
        self._wanted = sum(len(request.ids) for request in requests)
        self._with_input = any(request.payload for request in requests)

    def best(self, request: ClaimRequest, lane: str) -> Record | None:
        """Take the best record of a lane among the queues that the claim takes."""
        record = self._lane(request, lane).take(self._wanted)
        if record is not None:
            self._wanted = max(0, self._wanted - 1)
        return record

    def has_more(self, request: ClaimRequest) -> bool:
        return any(self._lane(request, lane).is_left() for lane in request.lanes)

    def _lane(self, request: ClaimRequest, name: str) -> "_Lane":
        wanted = queue_filter(request.sets, request.kinds)
        lane = self._lanes.get((request.namespace, name, wanted))
        if lane is None:
            lane = _Lane(self._heads(request, name, wanted))
            self._lanes[request.namespace, name, wanted] = lane
        return lane

    def _heads(
        self, request: ClaimRequest, lane: str, wanted: QueueFilter
    ) -> "list[tuple[float, str, _Queue]]":
        turn = turn_of(request.ids[0][0]) if request.ids else 0
        tables, place = self._tx.tables, (request.namespace, lane)
        heads = heads_of(tables, place, wanted, turn)
        if len(heads) > 1:
            first = best_heads(heads, self._wanted)
            size = self._wanted if wanted.is_small else -(-self._wanted // len(first))
            tables.open_queues([(*place, name) for name, *_ in first], _page(size))
        return [(rank, one, self._queue((*place, name), rank)) for name, rank, one in heads]

    def _queue(self, key: tuple[str, str, str], rank: float) -> "_Queue":
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(self._tx, key, with_input=self._with_input)
            if rank != -inf:
                queue.has_work()
        return queue


def heads_of(tables: Tables, lane: Key, wanted: QueueFilter, turn: int) -> list[QueueHead]:
    """The queues of a lane that a claim takes and that have work, with their first places; a few
    are named without a look."""
    if wanted.is_small:
        return [(name, *_UNKNOWN) for name in wanted.names]
    found: list[QueueHead] = []
    foreign, size = 0, _FIRST_HEADS
    place = wanted.next_behind("")
    while place is not None and len(found) < MOST_NAMED:
        page = tables.queues(lane, place, size)
        own = [head for head in page if wanted.takes(head[0])]
        found += own
        foreign += len(page) - len(own)
        if len(page) < size:
            break
        if foreign > MOST_FOREIGN:
            known = {name for name, _, _ in found}
            named = (name for name in wanted.named(turn) if name not in known)
            return found + [(name, *_UNKNOWN) for name in named]
        place, size = wanted.next_behind(page[-1][0]), min(8 * size, MOST_FOREIGN)
    return found


def best_heads(heads: list[QueueHead], wanted: int) -> list[QueueHead]:
    """Queues in whose first places so many records may be found, the best first."""
    return nsmallest(max(1, wanted), heads, key=lambda head: head[1:])


class _Lane:
    """The queues of a lane by what is next in each, as far as is known: a place is never behind
    that of the queue's best record."""

    def __init__(self, heads: list[tuple[float, str, "_Queue"]]) -> None:
        self._heads = [(rank, own, at, queue) for at, (rank, own, queue) in enumerate(heads)]
        heapify(self._heads)

    def take(self, wanted: int) -> Record | None:
        """The best record; `wanted` says how many of the next ones are likely to be taken."""
        heads = self._heads
        while heads:
            rank, execution_id, at, queue = heads[0]
            head = queue.head(-(-wanted // len(heads)))
            if head is None:
                heappop(heads)
            elif head.rank == rank and head.execution_id == execution_id:
                return queue.pop()
            else:
                heapreplace(heads, (head.rank, head.execution_id, at, queue))
        return None

    def is_left(self) -> bool:
        return any(queue.is_left() for *_, queue in self._heads)


class _Queue:
    def __init__(self, tx: Transaction, key: Key, *, with_input: bool) -> None:
        self._tx = tx
        self._key = key
        self._with_input = with_input
        self._page: Iterator[Record] = iter(())
        self._after: tuple[int, str] | None = None
        # None until somebody has looked.
        self._has_more: bool | None = None
        self._is_read = False
        self._head: Record | None = None

    def head(self, wanted: int) -> Record | None:
        """The best record left; `wanted` says how many of the next ones are likely to be taken."""
        while self._head is None:
            self._head = next(self._page, None)
            if self._head is None:
                if self._is_read:
                    return None
                self._turn_page(_page(wanted))
        return self._head

    def has_work(self) -> None:
        """Somebody has looked and seen a record."""
        self._has_more = True

    def pop(self) -> Record | None:
        head, self._head = self._head, None
        return head

    def is_left(self) -> bool:
        """Whether a record is left, without taking it: other claims may have it."""
        if self._head is None:
            self._head = next(self._page, None)
        if self._has_more is None:
            _, self._has_more = self._tx.tables.claimable(self._key, None, 0)
        return self._head is not None or self._has_more

    def _turn_page(self, wanted: int) -> None:
        rows, self._has_more = self._tx.tables.claimable(self._key, self._after, wanted)
        self._tx.notice(rows)
        if self._with_input and wanted > 1:
            self._tx.fetch(BLOBS, [(row.execution_id, "input") for row in rows])
        self._page = iter(rows)
        # Without a row the rest is in the hands of other claims.
        self._is_read = not rows or not self._has_more
        if rows:
            self._after = (rows[-1].rank, rows[-1].execution_id)


def _page(wanted: int) -> int:
    """How many records of a queue are read at once."""
    return min(max(1, wanted), QUEUE_PAGE)


def start_claim(
    tx: Transaction, requests: Sequence[ClaimRequest]
) -> Callable[[ClaimRequest], ClaimAnswer]:
    tx.flush()
    return partial(claim, tx, Queues(tx, requests))


def start_lease(
    tx: Transaction, claims: Sequence[NamedClaim]
) -> Callable[[NamedClaim], Offer | Refused]:
    tx.fetch(RECORDS, [named.execution_id for named in claims])
    return partial(lease_named, tx)


def claim(tx: Transaction, queues: Queues, request: ClaimRequest) -> ClaimAnswer:
    reply = _Reply(tx, request)
    looks = len(request.ids) + SPARE_LOOKS
    for lane in request.lanes:
        while not reply.full() and looks:
            looks -= 1
            record = queues.best(request, lane)
            if record is None:
                break
            reply.take(record)
    return ClaimAnswer(tuple(reply.offers), queues.has_more(request), tx.now)


class _Reply:
    def __init__(self, tx: Transaction, request: ClaimRequest) -> None:
        self.offers: list[Offer] = []
        self._tx = tx
        self._request = request
        self._room = request.room

    def full(self) -> bool:
        return len(self.offers) >= len(self._request.ids)

    def take(self, record: Record) -> None:
        request = self._request
        lease_id, attempt_id = request.ids[len(self.offers)]
        offer = _unleasable(self._tx, record)
        if offer is not None:
            self.offers.append(offer)
        elif request.mode == "reserve" or record.gated:
            self.offers.append(
                Offer(disposition="reserved", record=self._reserve(record, lease_id))
            )
        else:
            worker = (request.worker_id, request.worker_instance_id)
            terms = LeaseTerms(*worker, lease_id, attempt_id, request.lease_for)
            offer = _leased(self._tx, record, terms, request, self._room)
            self._room -= len(offer.input or b"")
            self.offers.append(offer)

    def _reserve(self, record: Record, grant_id: str) -> Record:
        request = self._request
        length = request.lease_for if request.mode == "reserve" else RESERVATION_MS
        terms = GrantTerms(request.worker_id, request.worker_instance_id, grant_id, length)
        done = transition(record, grant(record, terms), self._tx.now)
        _write(self._tx, done)
        return done.after


def _unleasable(tx: Transaction, record: Record) -> Offer | None:
    """A record that the engine has to end instead."""
    flow = tx.flow(record.flow_id) if record.flow_id else None
    if is_cancelled_by_flow(flow, record.state):
        return Offer(disposition="cancelled_by_flow", record=record)
    if is_exhausted(record):
        return Offer(disposition="exhausted", record=record)
    return None


def _leased(
    tx: Transaction,
    record: Record,
    terms: LeaseTerms,
    request: ClaimRequest | NamedClaim,
    room: float,
) -> Offer:
    """Lease a record; its input comes along if it fits into `room` bytes."""
    own = record.execution_id
    done = lease(record, terms, tx.now)
    _write(tx, done)
    body = tx.get(BLOBS, (own, "input")) if request.payload else None
    deferred = body is not None and len(body) > room
    linked = request.upstreams and record.flow_id
    paused_by = paused_by_suspension(record)
    return Offer(
        disposition="leased",
        record=done.after,
        input=None if deferred else body,
        input_deferred=deferred,
        journal_length=journal_length(tx, done.after),
        upstreams=upstreams_of(tx, own, results=True) if linked else (),
        suspension_id=paused_by,
        suspension=tx.get(DOCUMENTS, (own, SUSPENSION)) if paused_by else None,
    )


def lease_named(tx: Transaction, named: NamedClaim) -> Offer | Refused:
    record = tx.record(named.execution_id)
    worker = (named.worker_id, named.worker_instance_id)
    if record is None or not may_lease(record, tx.now, named.grant_id, worker):
        return Refused(record, tx.now)
    offer = _unleasable(tx, record)
    if offer is not None:
        return offer
    terms = LeaseTerms(*worker, named.lease_id, named.attempt_id, named.lease_for, named.reason)
    return _leased(tx, record, terms, named, inf)


def journal_length(tx: Transaction, record: Record) -> int:
    """How many steps are journaled; a first attempt cannot have any, so nobody looks."""
    if record.lease_epoch <= 1:
        return 0
    return tx.tables.journal_length(record.execution_id)


def _write(tx: Transaction, done: Transition) -> None:
    tx.write(done)
    if done.after.flow_id:
        move_member(tx, done)


def start_apply(tx: Transaction, plans: Sequence[Plan]) -> Callable[[Plan], Answer]:
    _flush_for_steps(tx, plans)
    tx.fetch(RECORDS, [plan.target for plan in plans])
    return partial(apply, tx)


def _flush_for_steps(tx: Transaction, plans: Iterable[Plan]) -> None:
    """Journal entries are counted in the tables."""
    if any(plan.steps for plan in plans):
        tx.flush()


Finish = tuple[Sequence[Plan], ClaimRequest]


def start_finish(tx: Transaction, items: Sequence[Finish]) -> Callable[[Finish], Finished]:
    _flush_for_steps(tx, (plan for plans, _ in items for plan in plans))
    tx.fetch(RECORDS, [plan.target for plans, _ in items for plan in plans])

    def finish(item: Finish) -> Finished:
        plans, request = item
        answers = tuple(attempt(tx, "apply", partial(apply, tx, plan)) for plan in plans)
        tx.flush()
        return Finished(answers, claim(tx, Queues(tx, [request]), request))

    return finish
