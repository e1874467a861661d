"""Calls that share a transaction, and how one bad item is kept from spoiling the others."""

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from flowfabric.backend.base import StoreCounters
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.work import MOST_ROWS, AnyWork, perform
from flowfabric.backend.sql.thread_queue import Call
from flowfabric.core.backoff import Backoff
from flowfabric.errors import FlowFabricError

Caller = Call[AnyWork]
# busy: another transaction is in conflict, repeat. item: one item of the batch is the cause.
# broken: the data is damaged, write no more. fault: everything else, the batch has failed.
Kind = Literal["busy", "item", "broken", "fault"]

# How often a transaction is begun while others are in conflict with it.
_TRIES: Final = 3
_BACKOFF: Final = Backoff(0.01, 0.02)


class Share(NamedTuple):
    """A run of items of one call."""

    call: Caller
    items: Sequence[Any]


class Committer(ABC):
    """Runs groups of calls on one connection; used by one thread only."""

    def __init__(self, counters: StoreCounters) -> None:
        # Once the data is damaged nothing more is written to it.
        self.broken: Exception | None = None
        self._counters = counters

    @abstractmethod
    def _transact(self, shares: list[Share]) -> tuple[Transaction, list[list[Any]]]:
        """One transaction, committed: what it did, and its answers."""

    @abstractmethod
    def _kind_of(self, fault: Exception) -> Kind: ...

    @abstractmethod
    def _error_for(self, fault: Exception) -> FlowFabricError:
        """A new error each time: a raised exception grows its traceback."""

    def run(self, calls: Sequence[Caller]) -> set[str]:
        """Do the work of all calls and note each one's answer; returns the topics to notify."""
        topics: set[str] = set()
        for call in calls:
            call.result = []
        self._attempt([Share(call, call.task.items) for call in calls], topics)
        return topics

    def _attempt(self, shares: list[Share], topics: set[str]) -> None:
        if self.broken is not None:
            self._fail(shares, self.broken)
            return
        try:
            while shares:
                shares = self._commit_with_retries(shares, topics)
        except Exception as fault:
            kind = self._kind_of(fault)
            if kind == "broken":
                self.broken = fault
            if kind != "item":
                self._fail(shares, fault)
            elif sum(len(share.items) for share in shares) <= 1:
                self._blame(shares, fault)
            else:
                for half in _halves(shares):
                    self._attempt(half, topics)

    def _commit_with_retries(self, shares: list[Share], topics: set[str]) -> list[Share]:
        for failures in range(1, _TRIES):
            try:
                return self._commit(shares, topics)
            except Exception as fault:
                if self._kind_of(fault) != "busy":
                    raise
            _pause(_BACKOFF.pause_s(failures, random.random()))
        return self._commit(shares, topics)

    def _commit(self, shares: list[Share], topics: set[str]) -> list[Share]:
        """One transaction; what is left for the next when this one became full. Answers are handed
        out only when it is committed."""
        tx, answers = self._transact(shares)
        topics |= tx.topics
        self._counters.siblings.update(tx.siblings)
        left = shares[len(answers) :]
        for share, answered in zip(shares, answers, strict=False):
            share.call.result += answered
            if len(answered) < len(share.items):
                left.insert(0, Share(share.call, share.items[len(answered) :]))
        return left

    def _blame(self, shares: list[Share], fault: Exception) -> None:
        """Answer the one item that is the cause with its own error."""
        for share in shares:
            share.call.result += [self._error_for(fault) for _ in share.items]

    def _fail(self, shares: list[Share], fault: Exception) -> None:
        """Fail whole calls: what other parts of them did stands, and every call may be repeated."""
        for share in shares:
            share.call.error = self._error_for(fault)


def perform_shares(tx: Transaction, shares: list[Share]) -> list[list[Any]]:
    """The answers of the shares the transaction had room for; the last of them may be cut off."""
    answers: list[list[Any]] = []
    for call, items in shares:
        answers.append(perform(tx, call.task.part(items)))
        if tx.rows_written >= MOST_ROWS:
            break
    return answers


def _pause(seconds: float) -> None:
    time.sleep(seconds)


def _halves(shares: list[Share]) -> tuple[list[Share], list[Share]]:
    """Cut a group in the middle of its items, if need be in the middle of a call."""
    room = sum(len(share.items) for share in shares) // 2
    first: list[Share] = []
    second: list[Share] = []
    for call, items in shares:
        head, tail = items[:room], items[room:]
        room -= len(head)
        if head:
            first.append(Share(call, head))
        if tail:
            second.append(Share(call, tail))
    return first, second
