"""One batch of one mechanism as one transaction."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from flowfabric.backend.base import StoreCounters
from flowfabric.backend.postgres.connection import Connection, Statement
from flowfabric.backend.postgres.faults import error_for, is_lost, kind_of
from flowfabric.backend.postgres.first_trips import prefetch
from flowfabric.backend.postgres.horizon import Horizon
from flowfabric.backend.postgres.opening import Opening
from flowfabric.backend.postgres.tables import PostgresTables
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.sql.batches import Committer, Kind, Share, perform_shares
from flowfabric.errors import FlowFabricError

# Sends notifications of these topics along with the commit.
Announce = Callable[[PostgresTables, set[str]], None]
_NO_WAIT: Final[Statement] = ("SELECT set_config('synchronous_commit', 'off', true)", ())


class Link:
    """The tables over a connection that is opened when it is needed, and again when it was lost."""

    def __init__(self, opening: Opening, horizon: Horizon | None = None) -> None:
        self._opening = opening
        self._horizon = horizon
        self._tables: PostgresTables | None = None

    def tables(self) -> PostgresTables:
        if self._tables is None:
            connection = Connection(self._opening.target)
            self._tables = PostgresTables(
                connection, self._opening.searchable, self._horizon, self._opening.last_opened
            )
        return self._tables

    @property
    def is_log_behind(self) -> bool | None:
        """Whether the last read left entries of the log to a later one; None if it read none."""
        return None if self._tables is None else self._tables.is_log_behind

    def recover(self, fault: BaseException) -> None:
        """End the transaction that failed, or close a connection that is lost."""
        if self._tables is None:
            return
        if not isinstance(fault, Exception) or is_lost(fault):
            self.close()
            return
        try:
            self._tables.rollback()
        except Exception:
            self.close()

    def finish_read(self) -> None:
        if self._tables is not None:
            self._tables.rollback()

    def close(self) -> None:
        if self._tables is not None:
            self._tables.connection.close()
            self._tables = None


class PostgresCommitter(Committer):
    def __init__(self, opening: Opening, counters: StoreCounters, announce: Announce) -> None:
        super().__init__(counters)
        self._opening = opening
        self._announce = announce
        self.link = Link(opening)

    def _transact(self, shares: list[Share]) -> tuple[Transaction, list[list[Any]]]:
        """All calls of a group have the same mechanism: two of them would take their locks in
        different orders."""
        name = shares[0].call.task.name
        items = [item for share in shares for item in share.items]
        try:
            tables = self.link.tables()
            tables.begin(purging=name == "purge")
            if may_be_lost(name, items):
                tables.add(*_NO_WAIT)
            now = prefetch(tables, name, items, self._opening.clock)
            tx = Transaction(tables, now, self._opening.searchable)
            answers = perform_shares(tx, shares)
            tx.flush()
            if tx.topics:
                self._announce(tables, tx.topics)
            tables.commit()
        except BaseException as fault:
            self.link.recover(fault)
            raise
        return tx, answers

    def _kind_of(self, fault: Exception) -> Kind:
        return kind_of(fault)

    def _error_for(self, fault: Exception) -> FlowFabricError:
        return error_for(fault, self._opening.target.where)


def may_be_lost(name: str, items: Sequence[Any]) -> bool:
    """Whether a crash of the server may take this batch with it, so that nobody waits for the disk:
    progress and best-effort frames, if there is nothing else."""
    match name:
        case "append":
            return all(
                item.summary is None and all(one.mode == "best_effort" for one in item.frames)
                for item in items
            )
        case "apply":
            return all(plan.rule == "progress" for plan in items)
    return False
