"""What workers write while they work: frames of every mode, for several attempts at once.

Beside the comparison of two stores, what a stream should have come to is kept here in the
plainest way there is: every patch applied by its definition, every number counted once.
"""

import json
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.engine.streams.streams import AnyFrame, Output
from flowfabric.operations.attempts import Appended, NewFrame
from flowfabric.operations.executions import Submission
from flowfabric.operations.streams import Frame, StreamRange, Tail
from tests.merging import patched, patches
from tests.model import strategies as some
from tests.model.holders import Holders
from tests.model.sides import Side
from tests.model.world import Open, told

Stream = tuple[str, int]

_numbers: Final = st.sampled_from([0, 0, 0, 1, 2, 3])


def _patch(patch: dict[str, Any], seq: int) -> NewFrame:
    payload = json.dumps(patch).encode()
    return NewFrame(frame_type="summary", payload=payload, seq=seq, mode="summary")


_durable: Final = st.builds(Frame, frame_type=st.just("token"), payload=some.bodies, seq=_numbers)
_summaries: Final = st.builds(_patch, patches, _numbers)
_live: Final = st.builds(
    NewFrame,
    frame_type=st.just("token"),
    payload=some.bodies,
    seq=_numbers,
    mode=st.just("best_effort"),
    ttl_ms=st.sampled_from([0, 250, 5_000]),
    live_maxlen=st.sampled_from([0, 2, 5]),
)
_WRONG: Final[list[AnyFrame]] = [
    NewFrame(frame_type="summary", payload=b"[]", mode="summary"),
    NewFrame(frame_type="summary", payload=b"{", mode="summary"),
    NewFrame(frame_type="summary", payload=b"{}", mode="summary", patch_kind="json-patch"),
    Frame(frame_type="token", payload=b"x" * 65_537),
]
_wrong: Final = st.sampled_from(_WRONG)
_frames: Final = st.lists(st.one_of(_durable, _summaries, _live), min_size=1, max_size=4)
_calls: Final = st.one_of(_frames, _frames, _frames, st.tuples(_wrong).map(list))


class Expected:
    """What a stream has taken, by the answers it gave."""

    def __init__(self) -> None:
        self.frames = 0
        self.version = 0
        self.document: Any = {}
        self._numbers: set[int] = set()

    def take(self, frames: list[AnyFrame]) -> None:
        for frame in frames:
            if frame.seq and frame.seq in self._numbers:
                continue
            self._numbers.add(frame.seq)
            self.frames += 1
            if frame.mode == "summary":
                self.version += 1
                self.document = patched(self.document, json.loads(frame.payload))


class Writers(Holders):
    def __init__(self, open_store: Open) -> None:
        super().__init__(open_store)
        self.expected: dict[Stream, Expected] = {}

    @rule(data=st.data())
    def attempts_write(self, data: st.DataObject) -> None:
        self.write(data)
        self.follow(data)

    def write(self, data: st.DataObject) -> None:
        """Several attempts write in one call, some of them wrongly, one perhaps twice; and as
        often as not the call is made again, as after a lost answer."""
        live = self._live() or self._start()
        chosen = data.draw(st.lists(st.sampled_from(live), min_size=1, max_size=3))
        strays = data.draw(st.lists(st.sampled_from(self.holdings), max_size=1))
        outputs = [
            Output(held, _index(held), data.draw(_calls))
            for held in (*chosen, *(some.as_sent(each, data.draw(some.hows)) for each in strays))
        ]
        for _ in range(data.draw(st.integers(1, 2))):
            self._append_many(outputs)

    def _start(self) -> list[LeaseProof]:
        created = self.both(
            lambda side: side.engine.executions.create(Submission(kind="work"))
        ).value
        assert created is not None
        own = created.execution_id
        self.executions.append(own)
        claimed = self.both(lambda side: side.engine.grants.issue_and_claim(own)).value
        assert claimed is not None
        self.hold([claimed])
        return [claimed.proof]

    def _live(self) -> list[LeaseProof]:
        """Whose lease holds now."""
        ids = [held.execution_id for held in self.holdings]
        seen = self.run(self.pair.reference.backend.read(ids, frozenset())) if ids else []
        leases = {
            one.record.lease_id
            for one in seen
            if one is not None
            and one.record.state == "active"
            and one.record.lease_until > self.clock()
        }
        return [held for held in self.holdings if held.lease_id in leases]

    def follow(self, data: st.DataObject) -> None:
        """Read some of what was written, from somewhere on."""
        if not self.known.streams:
            return
        own, index = data.draw(st.sampled_from(sorted(self.known.streams)))
        place: dict[str, Any] = {
            "count_limit": data.draw(st.integers(1, 5)),
            "visibility": data.draw(st.sampled_from(["all", "exclude_best_effort"])),
        }
        first = self.both(
            lambda side: side.engine.streams.read_stream(own, index, StreamRange(**place))
        )
        after = first.value.next_after if first.value else "0-0"
        asked = Tail(**place, after=after)
        self.both(lambda side: side.engine.streams.tail_stream(own, index, asked))

    def _append(self, held: LeaseProof, sent: LeaseProof, data: st.DataObject) -> None:
        self._append_many([Output(sent, _index(held), data.draw(_calls))])

    def _append_many(self, outputs: list[Output]) -> None:
        self.known.streams.update(_stream(output) for output in outputs)

        async def call(side: Side) -> list[object]:
            return told(await side.engine.streams.append_many(outputs))

        for output, answer in zip(outputs, self.both(call).value or (), strict=True):
            if isinstance(answer, Appended):
                expected = self.expected.setdefault(_stream(output), Expected())
                expected.take(list(output.frames))
                has_patches = any(frame.mode == "summary" for frame in output.frames)
                assert len(answer.ids) == len(output.frames)
                assert answer.frame_count == expected.frames
                assert answer.summary_version == (expected.version if has_patches else None)

    @invariant()
    def summaries_are_as_their_patches_say(self) -> None:
        for (own, index), expected in self.expected.items():
            backend = self.pair.reference.engine.deps.store.backend
            found = self.run(backend.summary(own, index))
            # What was purged has none any more.
            if found is not None:
                assert (found.version, json.loads(found.document)) == (
                    expected.version,
                    expected.document,
                )
            elif expected.version:
                assert not self.state_of(own)


def _index(held: LeaseProof) -> int:
    return held.record.attempt_index if held.record else 0


def _stream(output: Output) -> Stream:
    return output.proof.execution_id, output.attempt_index
