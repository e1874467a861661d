"""How the end of an execution is read off its record, the same for every adapter in process."""

from collections.abc import Mapping
from typing import Final, get_args

from flowfabric.backend.types import Seen, With
from flowfabric.ports.worker import End, Ended

WITH_RESULT: Final = frozenset[With]({"result"})
ENDS: Final[Mapping[str, End]] = {state: state for state in get_args(End)}


def end_of(seen: Seen | None) -> Ended | None:
    """None while the execution is live, or unknown."""
    state = ENDS.get(seen.record.state) if seen else None
    if seen is None or state is None:
        return None
    record = seen.record
    reason, category = record.failure_reason, record.failure_category
    if state == "cancelled":
        reason, category = record.cancellation_reason, "cancelled"
    return Ended(
        execution_id=record.execution_id,
        state=state,
        attempt_index=record.attempt_index,
        result=seen.result,
        result_encoding=record.result_encoding,
        reason=reason,
        category=category,
    )
