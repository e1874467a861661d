"""The journal of an execution: steps that were done, so that a later attempt need not redo them."""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from flowfabric.backend.optimistic import WRITE_CONFLICT, WriteConflict, decide
from flowfabric.backend.types import JournalAppend, Journaled
from flowfabric.core.checks import check_lease
from flowfabric.core.ids import check_text, parse_execution_id
from flowfabric.core.journal import JournalEntry
from flowfabric.core.rules.mailbox import MOST_UNREAD
from flowfabric.engine.checking import body, whole
from flowfabric.engine.deps import Deps
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.errors import (
    ExecutionNotFound,
    FlowFabricError,
    InvalidInput,
    Nondeterminism,
)
from flowfabric.operations import attempts
from flowfabric.operations.attempts import Kept, NewEntry
from flowfabric.operations.declaration import implements
from flowfabric.operations.execution_queries import ExecutionQueries
from flowfabric.operations.types import Page

ENTRY_BYTES: Final = 1024 * 1024
_NAME_BYTES: Final = 1024
_DIGEST_BYTES: Final = 128
_PAGE: Final = 100
_LARGEST_PAGE: Final = 1_000


class Journals:
    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    async def append(
        self, proof: LeaseProof, entries: Sequence[JournalEntry], take: Sequence[int] = ()
    ) -> list[Kept]:
        """Keep steps under the lease; one that was recorded with another digest is an error."""
        checked, taken = checked_entries(entries), _checked_take(take)
        fence = await self._deps.fence_of(proof, may_override=False)
        return await self._append(JournalAppend(proof.execution_id, fence, checked, taken))

    @implements(attempts.HeldAttempts.append_journal)
    async def append_journal(self, items: Sequence[NewEntry]) -> list[Kept | FlowFabricError]:
        if len(items) == 1:
            return [await self._answer(items[0])]
        return await asyncio.gather(*map(self._answer, items))

    async def _answer(self, new: NewEntry) -> Kept | FlowFabricError:
        try:
            (kept,) = await self.append(self._deps.leases.proof(new), (new.entry,), new.take)
        except FlowFabricError as fault:
            return fault
        return kept

    @implements(ExecutionQueries.journal)
    async def read(
        self, execution_id: str, after: int = 0, limit: int = _PAGE
    ) -> Page[JournalEntry]:
        """Entries behind the number `after`, in order of arrival."""
        parse_execution_id(execution_id, self._deps.counts)
        whole(after, "after")
        whole(limit, "limit", 1, _LARGEST_PAGE)
        page = await self._deps.store.backend.journal_read(execution_id, after, limit)
        if not page.rows:
            await self._deps.record(execution_id)
        entries = [entry for _, entry in page.rows]
        return Page(items=entries, next_cursor=str(page.rows[-1][0]) if page.more else "")

    async def _append(self, item: JournalAppend) -> list[Kept]:
        async def attempt() -> Journaled | WriteConflict:
            answer = await self._deps.store.journal(item)
            if isinstance(answer, Journaled):
                return answer
            if answer.seen is None:
                raise ExecutionNotFound(item.execution_id)
            check_lease(answer.seen, item.fence, answer.now)
            return WRITE_CONFLICT

        done = await decide("the journal of", item.execution_id, attempt, self._deps.chance)
        return [_kept(*pair) for pair in zip(item.entries, done.found, strict=True)]


def checked_entries(entries: Sequence[JournalEntry]) -> tuple[JournalEntry, ...]:
    """The entries as they are sent to the store, or the first thing that is wrong with them."""
    if not entries:
        raise InvalidInput("entries: expected at least one")
    return tuple(_checked(entry) for entry in entries)


def _checked_take(take: Sequence[int]) -> tuple[int, ...]:
    if len(take) > MOST_UNREAD or len(set(take)) < len(take):
        raise InvalidInput(f"take: expected at most {MOST_UNREAD} numbers, each once")
    return tuple(whole(seq, "take", 1) for seq in take) if take else ()


def _checked(entry: JournalEntry) -> JournalEntry:
    check_text(entry.name, "name", _NAME_BYTES, allow_empty=False)
    whole(entry.seq, "seq")
    check_text(entry.digest, "digest", _DIGEST_BYTES)
    outcome = body(entry.outcome, "outcome", ENTRY_BYTES)
    return entry if outcome is entry.outcome else msgspec.structs.replace(entry, outcome=outcome)


def _kept(entry: JournalEntry, before: JournalEntry | None) -> Kept:
    if before is None:
        return Kept(True)
    if before.digest == entry.digest:
        return Kept(False, before.outcome)
    raise Nondeterminism(
        f"step {entry.name!r}, use {entry.seq}: recorded {before.digest}, now {entry.digest}",
        recorded=before.digest,
        given=entry.digest,
    )
