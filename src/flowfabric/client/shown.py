"""What a server shows of executions, output and flows, as an engine in this process shows it."""

from typing import Any

import msgspec

from flowfabric.backend.types import Frame, StoredFrame, Summary
from flowfabric.engine.flow_reads import FlowSnapshot, Member, MemberPage
from flowfabric.engine.flow_replay import ReplayedMember
from flowfabric.engine.flow_types import (
    CancellationScheduled,
    Cancelled,
    FlowCancelled,
    PartiallyCancelled,
)
from flowfabric.engine.streams import StreamPage
from flowfabric.errors import MalformedResponse
from flowfabric.operations.errors import error_of
from flowfabric.wire import flows, streams


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


def flow_of(shown: flows.Flow) -> FlowSnapshot:
    """Counters of members stand beside the other members on the way."""
    members = msgspec.structs.asdict(shown)
    counts = {name: members.pop(name) for name in list(members) if name.startswith("members_")}
    return msgspec.convert({**members, "members": counts}, FlowSnapshot, from_attributes=True)


def members_of(shown: flows.Members) -> MemberPage:
    members = tuple(Member(one.execution_id, one.public_state) for one in shown.members)
    return MemberPage(members, shown.next_cursor or "")


def cancelled_of(told: flows.CancelFlowAnswer) -> FlowCancelled:
    if told.cancelled is not None:
        return msgspec.convert(told.cancelled, Cancelled, from_attributes=True)
    if told.cancellation_scheduled is not None:
        scheduled = told.cancellation_scheduled
        return msgspec.convert(scheduled, CancellationScheduled, from_attributes=True)
    if told.partially_cancelled is not None:
        return msgspec.convert(told.partially_cancelled, PartiallyCancelled, from_attributes=True)
    raise MalformedResponse("a cancellation without an outcome")


def replayed_of(told: flows.ReplayFlowAnswer) -> list[ReplayedMember]:
    return [
        ReplayedMember(
            one.execution_id, one.public_state or "", error_of(one.error) if one.error else None
        )
        for one in told.replayed.items
    ]
