"""Group commit: everything that waits shares one transaction, and one bad item spoils no other."""

import random
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from flowfabric.backend.base import StoreCounters
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.work import MOST_ROWS, AnyWork, perform
from flowfabric.backend.sqlite.faults import error_for, kind_of
from flowfabric.backend.sqlite.tables import SqliteTables
from flowfabric.backend.sqlite.thread_queue import Call
from flowfabric.core.backoff import Backoff

Caller = Call[AnyWork]
# How often a transaction is begun while another process has the file.
_TRIES: Final = 3
_BACKOFF: Final = Backoff(0.01, 0.02)


class Share(NamedTuple):
    """A run of items of one call."""

    call: Caller
    items: Sequence[Any]


class Committer:
    """Runs groups on the writing connection; used by one thread only."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: str,
        clock: Callable[[], int],
        searchable: frozenset[str],
        counters: StoreCounters,
    ) -> None:
        # Once the file is damaged nothing more is written to it.
        self.broken: Exception | None = None
        self._connection = connection
        self._path = path
        self._clock = clock
        self._searchable = searchable
        self._counters = counters
        self._tables = SqliteTables(connection, searchable)

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
            kind = kind_of(fault)
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
            except sqlite3.OperationalError as fault:
                if kind_of(fault) != "busy":
                    raise
            _pause(_BACKOFF.pause_s(failures, random.random()))
        return self._commit(shares, topics)

    def _commit(self, shares: list[Share], topics: set[str]) -> list[Share]:
        """One transaction; what is left for the next when this one became full. Answers are handed
        out only when it is safely in the file."""
        execute = self._connection.execute
        tables = self._tables
        try:
            execute("BEGIN IMMEDIATE")
            tables.begin()
            tx = Transaction(tables, self._clock(), self._searchable)
            answers = _perform(tx, shares)
            tx.flush()
            if tables.fault is not None:
                raise tables.fault
            execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                execute("ROLLBACK")
            raise
        topics |= tx.topics
        self._counters.siblings.update(tx.siblings)
        left = shares[len(answers) :]
        for share, answered in zip(shares, answers, strict=False):
            share.call.result += answered
            if len(answered) < len(share.items):
                left.insert(0, Share(share.call, share.items[len(answered) :]))
        return left

    def _blame(self, shares: list[Share], fault: Exception) -> None:
        """Answer the one item that is to blame with its own error."""
        for share in shares:
            share.call.result += [error_for(fault, self._path) for _ in share.items]

    def _fail(self, shares: list[Share], fault: Exception) -> None:
        """Fail whole calls: what other parts of them did stands, and every call may be repeated."""
        for share in shares:
            share.call.error = error_for(fault, self._path)


def _perform(tx: Transaction, shares: list[Share]) -> list[list[Any]]:
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
