"""Journals: named steps of executions, each kept once."""

from collections.abc import Sequence
from typing import Any

from flowfabric.backend.base import Answered
from flowfabric.backend.types import JournalAppend, Journaled, JournalPage
from flowfabric.backend.valkey.calls import Calls, Reply
from flowfabric.backend.valkey.envelopes import open_step, seal_step
from flowfabric.backend.valkey.keys import execution_partition_key
from flowfabric.backend.valkey.packing import Args, record_from
from flowfabric.backend.valkey.requests import AppendSteps, ReadSteps
from flowfabric.core import pages
from flowfabric.core.journal import (
    MAX_ENTRIES,
    JournalEntry,
    entry_too_large,
    journal_full,
    other_step,
)
from flowfabric.core.plan import Refused
from flowfabric.errors import Bug


class JournalMechanism:
    _calls: Calls

    async def journal(self, items: Sequence[JournalAppend]) -> list[Answered[Journaled | Refused]]:
        return await self._calls.batches(
            "journal",
            items,
            lambda item: execution_partition_key(item.execution_id),
            _pack,
            _answer,
        )

    async def journal_read(self, execution_id: str, after: int, limit: int) -> JournalPage:
        if limit <= 0:
            return JournalPage(())
        key = execution_partition_key(execution_id)
        request = ReadSteps(
            id=execution_id, after=after, limit=min(limit, MAX_ENTRIES), bytes=pages.MAX_PAGE_BYTES
        )
        reply = await self._calls.run("journal_read", key, request)
        more, *numbers = reply.head
        steps = (open_step(reply.bodies[number]) for number in numbers)
        return JournalPage(tuple(enumerate(steps, after + 1)), more)


def _key(item: JournalAppend) -> str:
    return execution_partition_key(item.execution_id)


def _pack(item: JournalAppend, args: Args) -> AppendSteps:
    fence = item.fence
    entries = [
        part
        for entry in item.entries
        for part in (f"a{entry.seq}:{entry.name}", entry.digest, len(entry.outcome))
    ]
    bodies = [args.put(seal_step(entry)) for entry in item.entries]
    return AppendSteps(
        id=item.execution_id,
        lease_id=fence.lease_id,
        lease_epoch=fence.lease_epoch,
        attempt_id=fence.attempt_id,
        entries=entries,
        first_argument=bodies[0] if bodies else 0,
    )


def _answer(item: JournalAppend, answer: Any, reply: Reply) -> Answered[Journaled | Refused]:
    match answer:
        case ["journaled", found]:
            return Journaled(tuple(_found(item, number, reply) for number in found), reply.now)
        case ["refused", row, static]:
            seen = record_from(reply.bodies[row], reply.bodies[static]) if row else None
            return Refused(seen, reply.now)
        case ["differs", place, recorded]:
            return other_step(item.entries[place - 1], recorded)
        case ["too large", place]:
            return entry_too_large(item.entries[place - 1])
        case ["full", length]:
            return journal_full(item.execution_id, length)
        case _:
            return Bug(f"journal: {answer[0]}")


def _found(item: JournalAppend, number: int, reply: Reply) -> JournalEntry | None:
    """What was there before an entry: in the store, or earlier in the same item."""
    if number < 0:
        return item.entries[-number - 1]
    return open_step(reply.bodies[number]) if number else None
