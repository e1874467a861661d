"""What a replay keeps of a journal, and the children that go on first."""

from typing import Final, get_args

import msgspec

from flowfabric.core.journal import (
    JournalEntry,
    child_of,
    failed_step,
    place_of_failure,
    place_of_step,
)
from flowfabric.core.record import Record
from flowfabric.core.rules.mailbox import taken_in
from flowfabric.core.suspensions import ReceivedSignal
from flowfabric.engine.deps import Deps
from flowfabric.errors import InvalidInput
from flowfabric.operations.executions import Steps

_PAGE: Final = 1_000

Rows = list[tuple[int, JournalEntry]]


class Order(msgspec.Struct, frozen=True):
    """What a replay is asked to keep; with `until` the entries that came before that step."""

    steps: Steps = "drop"
    until: str = ""

    @property
    def keeps(self) -> bool:
        return self.steps == "keep" or bool(self.until)


def order_of(steps: str, until: str) -> Order:
    if steps not in get_args(Steps):
        raise InvalidInput(f"steps: expected drop or keep, got {steps!r}")
    return Order("keep" if steps == "keep" else "drop", until)


class Kept(msgspec.Struct, frozen=True):
    """The first entry that is dropped, 0 if none is, the children that those before it name, and
    the signals that the others had taken from the mailbox."""

    first_dropped: int
    children: tuple[str, ...]
    given_back: tuple[ReceivedSignal, ...]


async def kept_of(deps: Deps, record: Record, order: Order) -> Kept:
    rows = await _journal(deps, record.execution_id)
    first = _first_dropped(rows, record, order)
    kept = [entry for number, entry in rows if not first or number < first]
    dropped = (entry for _, entry in rows[len(kept) :])
    children = tuple(child for entry in kept if (child := child_of(entry)))
    return Kept(first, children, taken_in(dropped))


def _first_dropped(rows: Rows, record: Record, order: Order) -> int:
    if order.until:
        return place_of_step(rows, order.until)
    return place_of_failure(rows, failed_step(record.failure_step)) if record.failure_step else 0


async def _journal(deps: Deps, execution_id: str) -> Rows:
    rows: Rows = []
    while True:
        after = rows[-1][0] if rows else 0
        page = await deps.store.backend.journal_read(execution_id, after, _PAGE)
        rows += page.rows
        if not page.more:
            return rows
