"""What a server shows of executions, output and flows, as an engine in this process shows it."""

from typing import Any

import msgspec

from flowfabric.backend.types import Frame, StoredFrame, Summary
from flowfabric.core.rules.signals import Accepted, Duplicate
from flowfabric.engine.deliveries import Delivered
from flowfabric.engine.streams import StreamPage
from flowfabric.errors import MalformedResponse
from flowfabric.wire import signals, streams


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
