"""Output of an attempt: frames, appended under its lease, read and tailed by anybody."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Final, assert_never, get_args

import msgspec

from flowfabric.backend.types import Append, Appended, Trim
from flowfabric.core.bounds import MAX_FRAMES, check_number
from flowfabric.core.ids import check_text, parse_execution_id
from flowfabric.core.merge_patch import PATCH_KIND, Object, read_patch
from flowfabric.core.plan import Fence
from flowfabric.core.policy import read_policy
from flowfabric.core.record import Record
from flowfabric.core.streams import (
    DEFAULT_LIVE_MAXLEN,
    DEFAULT_MAXLEN,
    MAX_FRAME_BYTES,
    SUMMARY_MAXLEN,
    explain_append,
)
from flowfabric.engine.checking import MAX_INSTANT, body, whole
from flowfabric.engine.deps import Deps
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.engine.permits import Permits
from flowfabric.engine.streams.summaries import Summaries
from flowfabric.engine.streams.tails import MAX_INDEX, StreamReads
from flowfabric.errors import (
    Bug,
    FlowFabricError,
    InvalidInput,
    NotFound,
    PayloadTooLarge,
    RetentionLimitExceeded,
)
from flowfabric.operations import attempts
from flowfabric.operations import streams as declared
from flowfabric.operations.attempts import NewFrame
from flowfabric.operations.declaration import implements
from flowfabric.operations.streams import (
    FROM_START,
    WHOLE_STREAM,
    Frame,
    FramePage,
    Mode,
    StreamRange,
    Summary,
    Tail,
)

_CALL_BYTES: Final = 8 * 1024 * 1024
_ALWAYS_FIT: Final = _CALL_BYTES // MAX_FRAME_BYTES
_NO_PATCHES: Final[Mapping[int, Object]] = {}
# Twice this and the present are still exact in a double.
_MOST_TTL_MS: Final = 2**51
_MOST_FRAMES: Final = 2**32 - 1
_MODES: Final = get_args(Mode)
_ENCODINGS: Final = ("utf8", "base64")

# As a caller sends it, or as the store keeps it.
AnyFrame = NewFrame | Frame


class Outgoing(msgspec.Struct, frozen=True):
    """Checked frames of one call, and the patches of its summary frames by their position."""

    frames: tuple[Frame, ...]
    patches: Mapping[int, Object]
    live_maxlen: int = 0

    def trims(self, durable: int) -> tuple[Trim, ...]:
        """How many frames to keep of each mode that this call adds to; 0 durable ones means about
        as many as without a limit."""
        modes = dict.fromkeys([frame.mode for frame in self.frames])
        return tuple([_trim(mode, durable, self.live_maxlen) for mode in modes])

    @property
    def expire_ms(self) -> int:
        """How long short-lived frames stay if nothing follows them."""
        return 2 * next((frame.ttl_ms for frame in reversed(self.frames) if frame.ttl_ms), 0)


@lru_cache(maxsize=1024)
def _trim(mode: Mode, durable: int, live: int) -> Trim:
    match mode:
        case "durable":
            return Trim(mode, durable or DEFAULT_MAXLEN, exact=durable > 0)
        case "summary":
            return Trim(mode, SUMMARY_MAXLEN, exact=False)
        case "best_effort":
            return Trim(mode, live or DEFAULT_LIVE_MAXLEN, exact=False)
        case _:
            assert_never(mode)


def outgoing(frames: Sequence[AnyFrame]) -> Outgoing:
    """The frames as they are sent to the store, or the first thing that is wrong with them."""
    if not frames:
        raise InvalidInput("frames: expected at least one")
    check_number(frames, "frames", MAX_FRAMES)
    checked = tuple(map(_checked, frames))
    if len(checked) > _ALWAYS_FIT and sum(len(frame.payload) for frame in checked) > _CALL_BYTES:
        raise PayloadTooLarge(f"frames: at most {_CALL_BYTES} bytes in one call")
    patches = dict(_patches(frames)) if has_summary(checked) else _NO_PATCHES
    asked = (frame.live_maxlen for frame in reversed(frames) if isinstance(frame, NewFrame))
    return Outgoing(checked, patches, next(filter(None, asked), 0))


def has_summary(frames: Sequence[AnyFrame]) -> bool:
    return any(frame.mode == "summary" for frame in frames)


def _checked(frame: AnyFrame) -> Frame:
    if frame.mode not in _MODES:
        raise InvalidInput(f"mode: expected one of {', '.join(_MODES)}, got {frame.mode!r}")
    check_text(frame.frame_type, "frame_type", 128)
    check_text(frame.source, "source", 128)
    check_text(frame.correlation_id, "correlation_id", 1024)
    whole(frame.ts, "ts")
    whole(frame.seq, "seq")
    whole(frame.ttl_ms, "ttl_ms", 0, _MOST_TTL_MS)
    if isinstance(frame, NewFrame):
        whole(frame.live_maxlen, "live_maxlen", 0, _MOST_FRAMES)
    if frame.encoding not in _ENCODINGS:
        raise InvalidInput(f"encoding: expected utf8 or base64, got {frame.encoding!r}")
    payload = body(frame.payload, "payload", MAX_INSTANT)
    if len(payload) > MAX_FRAME_BYTES:
        raise RetentionLimitExceeded(
            f"payload: at most {MAX_FRAME_BYTES} bytes, got {len(payload)}"
        )
    return _stored(frame, payload)


def _stored(frame: AnyFrame, payload: bytes) -> Frame:
    """The frame without what the store does not keep, or gives itself."""
    encoding = frame.encoding if _is_utf8(payload) else "base64"
    ttl_ms = frame.ttl_ms if frame.mode == "best_effort" else 0
    if isinstance(frame, Frame) and payload is frame.payload:
        given = (frame.encoding, frame.ttl_ms, frame.summary_version)
        if given == (encoding, ttl_ms, 0):
            return frame
    return Frame(
        frame_type=frame.frame_type,
        payload=payload,
        ts=frame.ts,
        encoding=encoding,
        source=frame.source,
        mode=frame.mode,
        correlation_id=frame.correlation_id,
        seq=frame.seq,
        ttl_ms=ttl_ms,
    )


def _patches(frames: Sequence[AnyFrame]) -> Iterator[tuple[int, Object]]:
    """Patches by their place in the call. A number twice in one call is one frame, its first."""
    numbers: set[int] = set()
    for place, frame in enumerate(frames):
        if frame.mode == "summary":
            patch = _patch(frame)
            if frame.seq not in numbers:
                yield place, patch
        if frame.seq:
            numbers.add(frame.seq)


def _patch(frame: AnyFrame) -> Object:
    kind = frame.patch_kind if isinstance(frame, NewFrame) else ""
    if kind not in ("", PATCH_KIND):
        raise InvalidInput("unsupported patch_kind")
    return read_patch(bytes(frame.payload))


def _is_utf8(payload: bytes) -> bool:
    if payload.isascii():
        return True
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


MOST_ITEMS: Final = 200
_REMEMBERED: Final = 4_096


class Output(msgspec.Struct, frozen=True):
    """What one attempt puts out in one call: all of its frames are appended, or none."""

    proof: LeaseProof
    attempt_index: int
    frames: Sequence[AnyFrame]


class Streams:
    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self._reads = StreamReads(deps)
        self._summaries = Summaries(deps)
        self._maxlens: OrderedDict[str, int] = OrderedDict()

    async def append(
        self, proof: LeaseProof, attempt_index: int, frames: Sequence[AnyFrame]
    ) -> attempts.Appended:
        """Append all frames or none, under the lease. The record itself is not written."""
        whole(attempt_index, "attempt_index", 0, MAX_INDEX)
        out = outgoing(frames)
        fence = await self._deps.fence_of(proof, may_override=False)
        item = Append(
            execution_id=proof.execution_id,
            attempt_index=attempt_index,
            fence=fence,
            frames=out.frames,
            trims=out.trims(await self._retention(proof, fence)),
            expire_ms=out.expire_ms,
        )
        if out.patches:
            answer = await self._summaries.append(item, out.patches)
        else:
            answer = await self._append(item)
        version = answer.summary_version if has_summary(out.frames) else None
        return attempts.Appended(answer.ids, answer.frame_count, version)

    @implements(attempts.HeldAttempts.append_frames)
    async def append_frames(
        self, items: Sequence[attempts.Output]
    ) -> list[attempts.Appended | FlowFabricError]:
        proof = self._deps.leases.proof
        outputs = [Output(proof(one), one.attempt_index, one.frames) for one in items]
        if len(outputs) == 1:
            return [await self._answer(outputs[0])]
        return await self.append_many(outputs)

    async def append_many(
        self, outputs: Sequence[Output]
    ) -> list[attempts.Appended | FlowFabricError]:
        """Append for several attempts in one call to the store. Each output has its own answer,
        and those of one attempt keep their order."""
        if not 1 <= len(outputs) <= MOST_ITEMS:
            raise InvalidInput(f"outputs: expected 1..{MOST_ITEMS}, got {len(outputs)}")
        places: dict[tuple[str, int], list[int]] = {}
        for place, output in enumerate(outputs):
            stream = (output.proof.execution_id, output.attempt_index)
            places.setdefault(stream, []).append(place)
        streams = ([outputs[place] for place in own] for own in places.values())
        answers = await asyncio.gather(*map(self._append_in_order, streams))
        found = zip(chain(*places.values()), chain(*answers), strict=True)
        return [answer for _, answer in sorted(found, key=itemgetter(0))]

    @implements(declared.Streams.read_stream)
    async def read_stream(
        self,
        execution_id: str,
        attempt_index: int,
        asked: StreamRange = WHOLE_STREAM,
        *,
        share: str = "",
    ) -> FramePage:
        """A range of frames, without waiting. A stream without frames reads as empty and open."""
        return await self._reads.read((execution_id, attempt_index), asked, share)

    @implements(declared.Streams.tail_stream)
    async def tail_stream(
        self,
        execution_id: str,
        attempt_index: int,
        asked: Tail = FROM_START,
        *,
        share: str = "",
    ) -> FramePage:
        """Frames behind `after`; with none there, wait in this process until one comes, the
        stream closes or the time is up."""
        return await self._reads.tail((execution_id, attempt_index), asked, share)

    async def follow_stream(self, execution_id: str, attempt_index: int, asked: Tail) -> FramePage:
        """As `tail_stream`, for a reader that stays: it takes no permit of the reads and tails."""
        return await self._reads.follow((execution_id, attempt_index), asked)

    @property
    def permits(self) -> Permits:
        """The pool that reads and tails share."""
        return self._reads.permits

    @implements(declared.Streams.read_summary)
    async def read_summary(self, execution_id: str, attempt_index: int) -> Summary:
        """The rolling document of an attempt; `NotFound` before its first patch."""
        parse_execution_id(execution_id, self._deps.counts)
        whole(attempt_index, "attempt_index", 0, MAX_INDEX)
        found = await self._deps.store.backend.summary(execution_id, attempt_index)
        if found is None:
            raise NotFound(f"summary not found: {execution_id} attempt {attempt_index}")
        return Summary(
            document=msgspec.Raw(found.document),
            version=found.version,
            patch_kind=found.patch_kind,
            last_updated_ms=found.last_updated_ms,
            first_applied_ms=found.first_applied_ms,
        )

    async def close(self) -> bool:
        """End waiting tails and take no more reads."""
        return await self._reads.close()

    async def _append_in_order(
        self, outputs: Sequence[Output]
    ) -> list[attempts.Appended | FlowFabricError]:
        """Outputs of one attempt. A summary is made from the one before, so that with patches
        among them each has to wait for its turn; otherwise all go together."""
        if any(has_summary(output.frames) for output in outputs):
            return [await self._answer(output) for output in outputs]
        return await asyncio.gather(*map(self._answer, outputs))

    async def _answer(self, output: Output) -> attempts.Appended | FlowFabricError:
        try:
            return await self.append(output.proof, output.attempt_index, output.frames)
        except FlowFabricError as refusal:
            return refusal

    async def _append(self, item: Append) -> Appended:
        answer = await self._deps.store.append(item)
        if isinstance(answer, Appended):
            return answer
        reason = explain_append(
            item.execution_id, item.attempt_index, item.fence, answer.seen, answer.now
        )
        raise reason or Bug(f"append to {item.execution_id} refused for no reason")

    async def _retention(self, proof: LeaseProof, fence: Fence) -> int:
        """How many durable frames to keep. The policy is frozen, so one look per attempt will do
        for callers that do not know the record from their claim."""
        record = proof.record
        if record is not None:
            return _maxlen(record)
        known = self._maxlens.get(fence.attempt_id)
        if known is None:
            record, _ = await self._deps.record(proof.execution_id)
            known = self._maxlens[fence.attempt_id] = _maxlen(record)
            if len(self._maxlens) > _REMEMBERED:
                self._maxlens.popitem(last=False)
        return known


def _maxlen(record: Record) -> int:
    policy = read_policy(record.policy).stream_policy
    return DEFAULT_MAXLEN if policy is None else policy.retention_maxlen
