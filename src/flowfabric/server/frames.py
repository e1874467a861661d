"""Frames as they are shown."""

from flowfabric.backend.types import StoredFrame
from flowfabric.wire import streams as wire


def shown_frame(stored: StoredFrame) -> wire.Frame:
    frame = stored.frame
    return wire.Frame(
        id=stored.id,
        fields=wire.FrameFields(
            correlation_id=frame.correlation_id or None,
            encoding=frame.encoding,
            frame_type=frame.frame_type,
            mode=frame.mode,
            payload=frame.payload,
            source=frame.source,
            summary_version=frame.summary_version or None,
            ts=frame.ts,
            ttl_ms=frame.ttl_ms or None,
        ),
    )
