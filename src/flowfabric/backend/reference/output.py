"""What an attempt put out, as its readers see it: frames, the summary, and whether it has ended."""

from flowfabric.backend.reference.streams import is_expired
from flowfabric.backend.reference.tables import ATTEMPTS, FRAMES, STREAMS, SUMMARIES
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.trimming import FrameKey, StreamKey
from flowfabric.backend.types import FrameRange, StoredSummary
from flowfabric.core.streams import START, Position, tail_position, upper_bound
from flowfabric.operations.streams import Frame, FramePage, StoredFrame


def read_frames(tx: Transaction, wanted: FrameRange) -> FramePage:
    stream = (wanted.execution_id, wanted.attempt_index)
    start = tail_position(wanted.after) if wanted.after else None
    end = upper_bound(wanted.to) if wanted.to else None
    rows: list[tuple[FrameKey, Frame]] = []
    if not is_expired(tx.get(STREAMS, stream), tx.now):
        behind = (*stream, *start) if start else None
        rows = tx.tables.range(FRAMES, stream, behind, max(0, wanted.limit))
    frames = tuple(
        StoredFrame(str(Position(ms, seq)), frame)
        for (_, _, ms, seq), frame in rows
        if end is None or (ms, seq) <= end
    )
    reached = frames[-1].id if frames else wanted.after or str(START)
    closed_at, closed_reason = _closing(tx, stream)
    return FramePage(
        frames=frames,
        count=len(frames),
        next_after=reached,
        closed_at=closed_at,
        closed_reason=closed_reason,
    )


def read_summary(tx: Transaction, execution_id: str, attempt: int) -> StoredSummary | None:
    return tx.get(SUMMARIES, (execution_id, attempt))


def _closing(tx: Transaction, stream: StreamKey) -> tuple[int, str]:
    """When and why the stream was closed: the open attempt is in the record, others beside it."""
    execution_id, index = stream
    record = tx.record(execution_id)
    attempt = record.attempt if record else None
    if attempt is None or attempt.index != index:
        attempt = tx.get(ATTEMPTS, stream)
    return (attempt.closed_at, attempt.closed_reason) if attempt else (0, "")
