"""Mechanisms `claim` and `lease`: choose the best waiting records and lease them in one step; and
`apply` and `finish`: plans, alone or with a claim behind them."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from flowfabric.backend.reference.reads import upstreams_of
from flowfabric.backend.reference.tables import BLOBS, DOCUMENTS, RECORDS
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.work import attempt
from flowfabric.backend.types import ClaimAnswer, ClaimRequest, Finished, NamedClaim, Offer
from flowfabric.core.apply import apply
from flowfabric.core.documents import SUSPENSION, Document
from flowfabric.core.graph import Flow, is_cancelled_by_flow
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
from flowfabric.core.record import Record
from flowfabric.core.rules.operators import grant
from flowfabric.core.transition import Transition, transition


class Queues:
    """The claimable views as one batch of claims sees them: each is read once, in order, and what
    a claim took is not offered to the next."""

    def __init__(self, tx: Transaction, requests: Sequence[ClaimRequest]) -> None:
        self._tx = tx
        self._heads: dict[tuple[str, str, str], _Queue] = {}
        # How much the batch may still take: no queue is read much further, and inputs of what will
        # be leased are loaded together.
        self._wanted = sum(len(request.ids) for request in requests)
        self._with_input = any(request.payload for request in requests)

    def best(self, namespace: str, lane: str, sets: Sequence[str]) -> Record | None:
        """Take the best record of a lane among these requirement sets."""
        chosen: _Queue | None = None
        for req_set in sets:
            queue = self._queue(namespace, lane, req_set)
            head = queue.head(self._wanted)
            if head is None:
                continue
            if chosen is None or _order(head) < _order(chosen.head(self._wanted)):
                chosen = queue
        if chosen is None:
            return None
        self._wanted = max(0, self._wanted - 1)
        return chosen.pop()

    def has_more(self, request: ClaimRequest) -> bool:
        return any(
            self._queue(request.namespace, lane, req_set).head(0) is not None
            for lane in request.lanes
            for req_set in request.sets
        )

    def _queue(self, namespace: str, lane: str, req_set: str) -> "_Queue":
        key = (namespace, lane, req_set)
        queue = self._heads.get(key)
        if queue is None:
            queue = self._heads[key] = _Queue(self._tx, key, with_input=self._with_input)
        return queue


def _order(record: Record | None) -> tuple[int, str]:
    return (record.rank, record.execution_id) if record else (0, "")


class _Queue:
    def __init__(self, tx: Transaction, key: tuple[str, str, str], *, with_input: bool) -> None:
        self._tx = tx
        self._key = key
        self._with_input = with_input
        self._page: Iterator[Record] = iter(())
        self._after: tuple[int, str] | None = None
        self._is_read = False
        self._head: Record | None = None

    def head(self, wanted: int) -> Record | None:
        """The best record left; `wanted` says how many of the next ones are likely to be taken."""
        while self._head is None:
            self._head = next(self._page, None)
            if self._head is None:
                if self._is_read:
                    return None
                self._turn_page(min(wanted, QUEUE_PAGE))
        return self._head

    def pop(self) -> Record | None:
        head, self._head = self._head, None
        return head

    def _turn_page(self, wanted: int) -> None:
        # One more than wanted says whether anything is left.
        limit = wanted + 1
        rows = self._tx.tables.view("claimable", self._key, self._after, limit)
        self._tx.notice(rows)
        if self._with_input and wanted > 1:
            self._tx.fetch(BLOBS, [(row.execution_id, "input") for row in rows[:wanted]])
        self._page = iter(rows)
        self._is_read = len(rows) < limit
        if rows:
            self._after = _order(rows[-1])


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
            record = queues.best(request.namespace, lane, request.sets)
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
        tx, request = self._tx, self._request
        lease_id, attempt_id = request.ids[len(self.offers)]
        if is_cancelled_by_flow(_flow(tx, record), record.state):
            self.offers.append(Offer(disposition="cancelled_by_flow", record=record))
        elif is_exhausted(record):
            self.offers.append(Offer(disposition="exhausted", record=record))
        elif request.mode == "reserve" or record.gated:
            self.offers.append(
                Offer(disposition="reserved", record=self._reserve(record, lease_id))
            )
        else:
            terms = LeaseTerms(
                request.worker_id,
                request.worker_instance_id,
                lease_id,
                attempt_id,
                request.lease_for,
            )
            self.offers.append(self._leased(record, terms))

    def _reserve(self, record: Record, grant_id: str) -> Record:
        request = self._request
        length = request.lease_for if request.mode == "reserve" else RESERVATION_MS
        terms = GrantTerms(request.worker_id, request.worker_instance_id, grant_id, length)
        done = transition(record, grant(record, terms), self._tx.now)
        _write(self._tx, done)
        return done.after

    def _leased(self, record: Record, terms: LeaseTerms) -> Offer:
        done = lease(record, terms, self._tx.now)
        _write(self._tx, done)
        body = (
            self._tx.get(BLOBS, (record.execution_id, "input")) if self._request.payload else None
        )
        deferred = body is not None and len(body) > self._room
        if body is not None and not deferred:
            self._room -= len(body)
        linked = self._request.upstreams and record.flow_id
        paused_by = paused_by_suspension(record)
        return Offer(
            disposition="leased",
            record=done.after,
            input=None if deferred else body,
            input_deferred=deferred,
            journal_length=journal_length(self._tx, done.after),
            upstreams=upstreams_of(self._tx, record.execution_id, results=True) if linked else (),
            suspension_id=paused_by,
            suspension=_suspension(self._tx, record) if paused_by else None,
        )


def lease_named(tx: Transaction, named: NamedClaim) -> Offer | Refused:
    record = tx.record(named.execution_id)
    worker = (named.worker_id, named.worker_instance_id)
    if record is None or not may_lease(record, tx.now, named.grant_id, worker):
        return Refused(record, tx.now)
    if is_cancelled_by_flow(_flow(tx, record), record.state):
        return Offer(disposition="cancelled_by_flow", record=record)
    if is_exhausted(record):
        return Offer(disposition="exhausted", record=record)
    terms = LeaseTerms(*worker, named.lease_id, named.attempt_id, named.lease_for, named.reason)
    done = lease(record, terms, tx.now)
    _write(tx, done)
    body = _input(tx, record) if named.payload else None
    paused_by = paused_by_suspension(record)
    linked = named.upstreams and record.flow_id
    return Offer(
        disposition="leased",
        record=done.after,
        input=body,
        upstreams=upstreams_of(tx, record.execution_id, results=True) if linked else (),
        journal_length=journal_length(tx, done.after),
        suspension_id=paused_by,
        suspension=_suspension(tx, record) if paused_by else None,
    )


def _input(tx: Transaction, record: Record) -> bytes | None:
    return tx.get(BLOBS, (record.execution_id, "input"))


def _suspension(tx: Transaction, record: Record) -> Document | None:
    return tx.get(DOCUMENTS, (record.execution_id, SUSPENSION))


def journal_length(tx: Transaction, record: Record) -> int:
    """How many steps are journaled; a first attempt cannot have any, so nobody looks."""
    if record.lease_epoch <= 1:
        return 0
    return tx.tables.journal_length(record.execution_id)


def _write(tx: Transaction, done: Transition) -> None:
    tx.write(done)
    if done.after.flow_id:
        move_member(tx, done)


def _flow(tx: Transaction, record: Record) -> Flow | None:
    return tx.flow(record.flow_id) if record.flow_id else None


def start_apply(tx: Transaction, plans: Sequence[Plan]) -> Callable[[Plan], Answer]:
    tx.fetch(RECORDS, [plan.target for plan in plans])
    return partial(apply, tx)


Finish = tuple[Sequence[Plan], ClaimRequest]


def start_finish(tx: Transaction, items: Sequence[Finish]) -> Callable[[Finish], Finished]:
    tx.fetch(RECORDS, [plan.target for plans, _ in items for plan in plans])

    def finish(item: Finish) -> Finished:
        plans, request = item
        answers = tuple(attempt(tx, "apply", partial(apply, tx, plan)) for plan in plans)
        tx.flush()
        return Finished(answers, claim(tx, Queues(tx, [request]), request))

    return finish
