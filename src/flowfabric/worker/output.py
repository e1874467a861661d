"""Output: frames are numbered as they come and sent in batches, one batch in flight."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Final, Literal

import msgspec

from flowfabric.core.streams import MAX_FRAME_BYTES
from flowfabric.errors import ConfigError, FlowFabricError
from flowfabric.operations.attempts import NewFrame
from flowfabric.worker import codecs

StreamMode = Literal["durable", "best_effort"]
# The type of the frame that keeps a handler's traceback.
TRACEBACK: Final = "ff.traceback"

_MOST_WAITING: Final = 1_000
_MOST_BYTES: Final = 4 * 1024 * 1024

# How many frames the running step has put out.
_in_step: ContextVar[list[int] | None] = ContextVar("frames_in_step", default=None)


class FrameSender:
    """A number identifies a frame within its attempt: a handler that is entered again puts out the
    same frames under the same numbers, and the store keeps the first ones."""

    def __init__(self, send: Callable[[list[NewFrame]], Awaitable[None]]) -> None:
        self._send = send
        self._waiting: list[NewFrame] = []
        self._bytes = 0
        self._number = 0
        self._sending: asyncio.Task[None] | None = None
        self._fault: FlowFabricError | None = None

    @property
    def is_busy(self) -> bool:
        """Whether something put out is not known to be stored."""
        return self._sending is not None or self._fault is not None

    def skip(self, frames: int) -> None:
        """Pass the numbers that a recorded step used."""
        self._number += frames
        self._count(frames)

    async def put(self, frame: NewFrame) -> None:
        self._raise()
        self._number += 1
        self._count(1)
        self._waiting.append(msgspec.structs.replace(frame, seq=self._number))
        self._bytes += len(frame.payload)
        if self._sending is None:
            self._sending = asyncio.ensure_future(self._send_all())
        if len(self._waiting) >= _MOST_WAITING or self._bytes >= _MOST_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Wait until everything put so far is stored; a failure to store it is raised here."""
        while self._sending is not None:
            await asyncio.shield(self._sending)
        self._raise()

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                frames, self._waiting, self._bytes = self._waiting, [], 0
                await self._send(frames)
        except FlowFabricError as fault:
            self._fault = fault
        finally:
            self._sending = None

    def _raise(self) -> None:
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault

    def _count(self, frames: int) -> None:
        counted = _in_step.get()
        if counted is not None:
            counted[0] += frames


def is_in_step() -> bool:
    return _in_step.get() is not None


def counting() -> list[int]:
    """Begin to count the frames of the step that runs in this task."""
    counted = [0]
    _in_step.set(counted)
    return counted


def frame_of(payload: object, frame_type: str) -> NewFrame:
    """A frame of text, bytes or anything encodable."""
    if isinstance(payload, str):
        body = payload.encode()
    else:
        body, _ = codecs.encode(payload)
    if len(body) > MAX_FRAME_BYTES:
        raise ConfigError(f"stream: a frame holds {MAX_FRAME_BYTES} bytes, got {len(body)}")
    return NewFrame(frame_type=frame_type, payload=body)
