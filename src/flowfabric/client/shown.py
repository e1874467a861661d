"""What a server shows of executions, output and flows, as an engine in this process shows it."""

from typing import Any

import msgspec

from flowfabric.backend.types import Frame, StoredFrame, Summary
from flowfabric.engine.streams import StreamPage
from flowfabric.wire import streams


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
