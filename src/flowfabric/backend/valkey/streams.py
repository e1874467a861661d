"""Output of attempts: frames in, frames and summaries out; and journals: named steps of executions,
each kept once."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final, get_args

from flowfabric.backend.base import Answered
from flowfabric.backend.types import (
    Append,
    Appended,
    FrameRange,
    JournalAppend,
    Journaled,
    JournalPage,
    StoredSummary,
    StreamRefused,
)
from flowfabric.backend.valkey.calls import Calls, Read, Reply
from flowfabric.backend.valkey.envelopes import (
    open_frame,
    open_step,
    seal_frame,
    seal_step,
    step_address,
)
from flowfabric.backend.valkey.fan_out import fetch, fetch_groups
from flowfabric.backend.valkey.keys import FIELDS, execution_partition_key, key_of_item, stored_key
from flowfabric.backend.valkey.layout import ATTEMPT, METER, PLAIN, RECORD, RECORD_DEFAULTS
from flowfabric.backend.valkey.packing import (
    UNREADABLE,
    Args,
    attempt_of,
    decode,
    record_at,
)
from flowfabric.backend.valkey.requests import AppendFrames, AppendSteps, PutSummary, ReadSteps
from flowfabric.core import pages
from flowfabric.core.documents import mail_name
from flowfabric.core.journal import (
    MAX_ENTRIES,
    JournalEntry,
    entry_too_large,
    journal_full,
    mail_gone,
    other_step,
)
from flowfabric.core.merge_patch import summary_too_large
from flowfabric.core.plan import Refused
from flowfabric.core.streams import (
    MAX_FRAME_BYTES,
    START,
    Position,
    frame_too_large,
    tail_position,
    upper_bound,
)
from flowfabric.errors import Bug, Corruption, FlowFabricError, RetentionLimitExceeded
from flowfabric.operations.streams import Frame, FramePage, Mode, StoredFrame

MODES: Final[tuple[Mode, ...]] = get_args(Mode)
_NUMBER: Final = {mode: number for number, mode in enumerate(MODES, 1)}
_position: Final = itemgetter(0)
_ATTEMPT_AT: Final = RECORD.index("attempt")
_ATTEMPT_INDEX_AT: Final = RECORD.index("attempt_index")
_INDEX_AT: Final = ATTEMPT.index("index")
_EXPIRES_AT: Final = METER.index("expires_at")

_Row = tuple[Position, Frame]


class StreamMechanism:
    _calls: Calls

    async def append(self, items: Sequence[Append]) -> list[Answered[Appended | StreamRefused]]:
        return await self._calls.batches("append", items, key_of_item, _pack, _answer)

    async def frames(self, ranges: Sequence[FrameRange]) -> list[Answered[FramePage]]:
        asked = [_reads(wanted) for wanted in ranges]
        # A page that says that the stream has ended must have the frames of that moment.
        groups = [reads for reads in asked if type(reads) is list]
        fetched = await fetch_groups(self._calls, groups)
        replies = iter(fetched.replies)
        return [
            reads
            if isinstance(reads, FlowFabricError)
            else _page(wanted, [next(replies) for _ in reads], fetched.now)
            for wanted, reads in zip(ranges, asked, strict=True)
        ]

    async def summary(self, execution_id: str, attempt: int) -> StoredSummary | None:
        read = ("HMGET", _meter_key(execution_id, attempt), "d", "k", "u", "m")
        fetched = await fetch(self._calls, [read])
        ((document, kind, updated_at, row),) = fetched.checked()
        if document is None:
            return None
        meter = _meter(row)
        return StoredSummary(
            document=document,
            version=meter["summary_version"],
            patch_kind=kind.decode(),
            last_updated_ms=int(updated_at),
            first_applied_ms=meter["summary_since"],
        )

    async def journal(self, items: Sequence[JournalAppend]) -> list[Answered[Journaled | Refused]]:
        return await self._calls.batches("journal", items, key_of_item, _pack_steps, _journaled)

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


def _pack(item: Append, args: Args) -> AppendFrames:
    fence, put = item.fence, item.summary
    trims = [
        part for one in item.trims for part in (_NUMBER[one.mode], max(0, one.length), one.exact)
    ]
    frames = [
        part for one in item.frames for part in (_NUMBER[one.mode], one.seq, len(one.payload))
    ]
    bodies = [args.put(seal_frame(frame)) for frame in item.frames]
    return AppendFrames(
        id=item.execution_id,
        attempt_index=item.attempt_index,
        lease_id=fence.lease_id,
        lease_epoch=fence.lease_epoch,
        attempt_id=fence.attempt_id,
        expire_ms=item.expire_ms,
        trims=trims,
        summary=PutSummary(
            expected_version=put.expected_version,
            patches=put.patches,
            kind=put.patch_kind,
            body_argument=args.put(put.document),
        )
        if put
        else False,
        frames=frames,
        first_argument=bodies[0] if bodies else 0,
    )


def _answer(item: Append, answer: Any, reply: Reply) -> Answered[Appended | StreamRefused]:
    match answer:
        case ["appended", ids, frame_count, retained, version, replayed]:
            return Appended(tuple(ids), frame_count, retained, reply.now, version, replayed)
        case ["refused", row, static, version, places]:
            seen = record_at(reply.bodies, row, static)
            return StreamRefused(seen, reply.now, version, tuple(places))
        case ["too large"]:
            return _too_large(item)
        case _:
            return Bug(f"append: {answer[0]}")


def _too_large(item: Append) -> RetentionLimitExceeded:
    for frame in item.frames:
        if len(frame.payload) > MAX_FRAME_BYTES:
            return frame_too_large(len(frame.payload))
    return summary_too_large(len(item.summary.document) if item.summary else 0)


# ---- reading


def _meter_key(execution_id: str, attempt: int) -> str:
    return stored_key("meter", execution_id, str(attempt))


def _meter(row: bytes | None) -> dict[str, int]:
    """The counters of a stream."""
    return dict(zip(METER, decode(row), strict=True)) if row else dict.fromkeys(METER, 0)


def _reads(wanted: FrameRange) -> list[Read] | FlowFabricError:
    """The counters, the row of the record and of the attempt, and the range of each mode."""
    try:
        start = f"({tail_position(wanted.after)}" if wanted.after else "-"
        end = str(upper_bound(wanted.to)) if wanted.to else "+"
    except FlowFabricError as fault:
        return fault
    own, index = wanted.execution_id, str(wanted.attempt_index)
    attempt = FIELDS["attempt"] + index
    execution, stream = stored_key("execution", own), stored_key("frames", own, index)
    bounds = (start, end, "COUNT", str(max(0, wanted.limit)))
    return [
        ("HGET", _meter_key(own, wanted.attempt_index), "m"),
        ("HMGET", execution, FIELDS["record"], attempt),
        *[("XRANGE", f"{stream}:{number}", *bounds) for number in _NUMBER.values()],
    ]


def _page(wanted: FrameRange, replies: list[Any], now: int) -> Answered[FramePage]:
    for reply in replies:
        if isinstance(reply, FlowFabricError):
            return reply
    row, found, *streams = replies
    is_expired = row is not None and 0 < decode(row)[_EXPIRES_AT] <= now
    rows: list[_Row] = []
    for mode, entries in zip(MODES, streams, strict=True):
        if entries and not is_expired:
            rows += frames_from(entries, mode)
    rows.sort(key=_position)
    rows = rows[: max(0, wanted.limit)]
    frames = tuple([StoredFrame(str(position), frame) for position, frame in rows])
    reached = frames[-1].id if frames else wanted.after or str(START)
    closed_at, closed_reason = _closing(wanted.attempt_index, *found)
    return FramePage(
        frames=frames,
        count=len(frames),
        next_after=reached,
        closed_at=closed_at,
        closed_reason=closed_reason,
    )


def _closing(index: int, row: bytes | None, ended: bytes | None) -> tuple[int, str]:
    """When and why the stream was closed: the open attempt is in the record, others beside it."""
    try:
        attempt = _open_attempt(row, index) if row is not None else None
        if attempt is None and ended is not None:
            attempt = decode(ended)
        found = attempt_of(attempt) if attempt else None
    except UNREADABLE as fault:
        raise Corruption(f"attempt: cannot be read: {fault}") from fault
    return (found.closed_at, found.closed_reason) if found else (0, "")


def _open_attempt(row: bytes, index: int) -> list[Any] | None:
    """The attempt of a record, if it is this one; empty if it only began, and so is not closed."""
    values = decode(row)
    values += RECORD_DEFAULTS[len(values) :]
    attempt = values[_ATTEMPT_AT]
    if attempt == PLAIN:
        return [] if values[_ATTEMPT_INDEX_AT] == index else None
    return attempt if attempt and attempt[_INDEX_AT] == index else None


def frames_from(entries: Any, mode: Mode) -> list[_Row]:
    """The entries of one mode's stream as frames."""
    rows: list[_Row] = []
    for entry_id, fields in entries:
        ms, _, seq = entry_id.partition(b"-")
        position = Position(int(ms), int(seq))
        named = dict(zip(fields[::2], fields[1::2], strict=True))
        ts, version = int(named.get(b"t", ms)), int(named.get(b"v", 0))
        rows.append((position, open_frame(named[b"f"], mode, ts, version)))
    return rows


# ---- journals


def _pack_steps(item: JournalAppend, args: Args) -> AppendSteps:
    fence = item.fence
    entries = [
        part
        for entry in item.entries
        for part in (step_address(entry), entry.digest, len(entry.outcome))
    ]
    bodies = [args.put(seal_step(entry)) for entry in item.entries]
    return AppendSteps(
        id=item.execution_id,
        lease_id=fence.lease_id,
        lease_epoch=fence.lease_epoch,
        attempt_id=fence.attempt_id,
        entries=entries,
        first_argument=bodies[0] if bodies else 0,
        take=[mail_name(seq) for seq in item.take],
    )


def _journaled(item: JournalAppend, answer: Any, reply: Reply) -> Answered[Journaled | Refused]:
    match answer:
        case ["journaled", found]:
            return Journaled(tuple(_found_step(item, number, reply) for number in found), reply.now)
        case ["refused", row, static]:
            return Refused(record_at(reply.bodies, row, static), reply.now)
        case ["differs", place, recorded]:
            return other_step(item.entries[place - 1], recorded)
        case ["too large", place]:
            return entry_too_large(item.entries[place - 1])
        case ["full", length]:
            return journal_full(item.execution_id, length)
        case ["no mail", place]:
            return mail_gone(item.execution_id, item.take[place - 1])
        case _:
            return Bug(f"journal: {answer[0]}")


def _found_step(item: JournalAppend, number: int, reply: Reply) -> JournalEntry | None:
    """What was there before an entry: in the store, or earlier in the same item."""
    if number < 0:
        return item.entries[-number - 1]
    return open_step(reply.bodies[number]) if number else None
