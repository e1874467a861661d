"""Output of attempts, and the feed of events."""

from typing import Annotated, Final, Literal

import msgspec

from flowfabric.errors import NotFound, ResourceExhausted
from flowfabric.operations.declaration import READ, READ_OR_WORKER, operation
from flowfabric.operations.events import Event, EventQuery
from flowfabric.operations.types import VISIBLE, Answer, ExecutionId, Page, Params

Mode = Literal["durable", "summary", "best_effort"]
Visibility = Literal["all", "exclude_best_effort"]

_ATTEMPT: Final = "/v1/executions/{execution_id}/attempts/{attempt_index}"


class Frame(Answer, frozen=True, kw_only=True):
    """One piece of output. The members are in alphabetical order, as readers see them."""

    correlation_id: str = ""
    encoding: str = "utf8"
    frame_type: str
    mode: Mode = "durable"
    payload: bytes
    # The writer's own number; one already seen appends nothing. 0 means none. Readers never see it.
    seq: int = 0
    source: str = "worker"
    summary_version: int = 0
    ts: int = 0
    ttl_ms: int = 0


class StoredFrame(Answer, frozen=True):
    """A frame and the position that the store gave it."""

    id: str
    frame: Frame = msgspec.field(name="fields")


class FramePage(Answer, frozen=True, kw_only=True):
    """Frames in order. `next_after` is the last id looked at, hidden frames included; the close
    members are set once the stream is closed."""

    frames: tuple[StoredFrame, ...]
    count: int
    next_after: str
    closed_at: int = 0
    closed_reason: str = ""


class Summary(Answer, frozen=True, kw_only=True):
    """The rolling document of an attempt as JSON, and how many patches made it."""

    document: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]
    version: int
    patch_kind: str
    last_updated_ms: int
    first_applied_ms: int


class StreamRange(
    Params, frozen=True, kw_only=True, rename={"start": "from", "end": "to", "count_limit": "limit"}
):
    """Which frames of an attempt to read; both ends are included."""

    start: str = "start"
    end: str = "end"
    count_limit: int = 100
    visibility: Visibility = "all"


class Tail(Params, frozen=True, kw_only=True, rename={"count_limit": "limit"}):
    """From where to follow an attempt's output, and how long to wait for the first frame."""

    after: str = "0-0"
    block_ms: int = 0
    count_limit: int = 50
    visibility: Visibility = "all"


WHOLE_STREAM: Final = StreamRange()
FROM_START: Final = Tail()
PRESENT: Final = EventQuery()


class Streams:
    @operation(f"GET {_ATTEMPT}/stream", READ_OR_WORKER, ResourceExhausted)
    async def read_stream(
        self, execution_id: ExecutionId, attempt_index: int, asked: StreamRange = WHOLE_STREAM
    ) -> FramePage:
        """A range of frames, without waiting. A stream that nobody wrote is empty and open."""

    @operation(f"GET {_ATTEMPT}/stream/tail", READ_OR_WORKER, ResourceExhausted, waits="block_ms")
    async def tail_stream(
        self, execution_id: ExecutionId, attempt_index: int, asked: Tail = FROM_START
    ) -> FramePage:
        """Frames after a position; if there are none, those that arrive within `block_ms`."""

    @operation(f"GET {_ATTEMPT}/summary", READ_OR_WORKER, NotFound)
    async def read_summary(self, execution_id: ExecutionId, attempt_index: int) -> Summary:
        """The rolling document of an attempt."""

    @operation("GET /v1/events", READ, ResourceExhausted, owner=VISIBLE, waits="wait_ms")
    async def read_events(self, asked: EventQuery = PRESENT) -> Page[Event]:
        """Events after a cursor; with `Accept: text/event-stream` they are sent as they happen.
        Without a cursor the answer has only the present position."""
