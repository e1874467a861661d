"""What a server shows of executions, output and flows, as an engine in this process shows it."""

from typing import Any

import msgspec

from flowfabric.backend.types import Frame, StoredFrame, Summary
from flowfabric.core.events import HistoryEntry
from flowfabric.core.record import NO_ATTEMPT, Attempt
from flowfabric.core.rules.signals import Accepted, Duplicate
from flowfabric.engine.deliveries import Delivered
from flowfabric.engine.explanation_types import Explanation
from flowfabric.engine.streams import StreamPage
from flowfabric.errors import MalformedResponse
from flowfabric.wire import executions, explanations, signals, streams


def explanation_of(shown: explanations.Explanation) -> Explanation:
    return msgspec.convert(shown, Explanation, from_attributes=True)


def attempt_of(shown: executions.Attempt) -> Attempt:
    members: dict[str, Any] = {
        name: value
        for name in Attempt.__struct_fields__
        if (value := getattr(shown, name, None)) is not None
    }
    members.setdefault("previous_attempt", NO_ATTEMPT)
    members.update(index=shown.attempt_index, type=shown.attempt_type)
    return Attempt(**members)


def history_of(shown: executions.History) -> list[HistoryEntry]:
    return [HistoryEntry(one.event, one.ts, one.fields) for one in shown.events]


def page_of(shown: streams.Frames) -> StreamPage:
    return StreamPage(
        frames=tuple(_frame(one) for one in shown.frames),
        next_after=shown.next_after,
        closed_at=shown.closed_at,
        closed_reason=shown.closed_reason,
    )


def _frame(shown: streams.Frame) -> StoredFrame:
    members: dict[str, Any] = {
        name: value
        for name in shown.fields.__struct_fields__
        if (value := getattr(shown.fields, name)) is not None
    }
    return StoredFrame(shown.id, Frame(**members))


def summary_of(shown: streams.Summary) -> Summary:
    members = msgspec.structs.asdict(shown)
    return Summary(**{**members, "document": msgspec.json.encode(shown.document)})


def delivered_of(told: signals.SignalAnswer) -> Delivered:
    if told.accepted is not None:
        return Accepted(told.accepted.signal_id, told.accepted.effect)
    if told.duplicate is None:
        raise MalformedResponse("a signal that is neither accepted nor known")
    return Duplicate(told.duplicate.existing_signal_id)
