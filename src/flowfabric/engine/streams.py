"""Output of an attempt: frames appended under its lease, read by anybody, tailed as they come."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from typing import Final

import msgspec

from flowfabric.backend.types import Append, Appended
from flowfabric.core.fence import Fence
from flowfabric.core.ids import parse_execution_id
from flowfabric.core.policy import read_policy
from flowfabric.core.record import Record
from flowfabric.core.streams import DEFAULT_MAXLEN, explain_append
from flowfabric.engine.checking import whole
from flowfabric.engine.deps import Deps
from flowfabric.engine.fences import fence_of
from flowfabric.engine.frames import AnyFrame, has_summary, outgoing
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.engine.permits import Permits
from flowfabric.engine.summaries import Summaries
from flowfabric.engine.tails import MAX_INDEX, StreamReads
from flowfabric.errors import Bug, FlowFabricError, InvalidInput, NotFound
from flowfabric.operations import attempts
from flowfabric.operations import streams as declared
from flowfabric.operations.declaration import implements
from flowfabric.operations.streams import (
    FROM_START,
    WHOLE_STREAM,
    FramePage,
    StreamRange,
    Summary,
    Tail,
)

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
        fence = await fence_of(self._deps, proof, may_override=False)
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
        self, execution_id: str, attempt_index: int, asked: StreamRange = WHOLE_STREAM
    ) -> FramePage:
        """A range of frames, without waiting; what nobody ever wrote reads as empty and open."""
        return await self._reads.read((execution_id, attempt_index), asked)

    @implements(declared.Streams.tail_stream)
    async def tail_stream(
        self, execution_id: str, attempt_index: int, asked: Tail = FROM_START
    ) -> FramePage:
        """Frames behind `after`; with none there, wait in this process until one comes, the
        stream closes or the time is up."""
        return await self._reads.tail((execution_id, attempt_index), asked)

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
