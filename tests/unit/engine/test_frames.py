"""Frames before they are sent: checks, what is kept of each mode, and how one is shown."""

from typing import Any

import msgspec
import pytest

from flowfabric.backend.types import Trim
from flowfabric.core.bounds import MAX_FRAMES
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.engine.streams.streams import AnyFrame, Streams, outgoing
from flowfabric.errors import (
    FlowFabricError,
    InvalidInput,
    PayloadTooLarge,
    RetentionLimitExceeded,
)
from flowfabric.operations.answers import encode
from flowfabric.operations.attempts import NewFrame
from flowfabric.operations.streams import Frame, StoredFrame
from tests.unit.engine.nostore import deps_without_store

_ID = "{fp:7}:00000000-0000-4000-8000-000000000001"


def frame(payload: Any = b"", **fields: Any) -> Frame:
    return Frame(frame_type="t", payload=payload, **fields)


def test_frames_pass_unchanged_up_to_the_limit() -> None:
    frames = (Frame(frame_type="t", payload=b"x" * 65_536, ts=5, seq=1),)
    assert outgoing(frames).frames == frames


def test_bytes_that_are_no_text_are_marked_as_base64() -> None:
    frames = [frame(b"\xff"), frame("ü".encode())]
    binary, text = outgoing(frames).frames
    assert (binary.encoding, text.encoding) == ("base64", "utf8")
    assert binary.payload == b"\xff"


def test_what_the_store_gives_or_does_not_keep_is_taken_off() -> None:
    frames: list[AnyFrame] = [
        frame(b"a", ttl_ms=5, summary_version=7),
        NewFrame(frame_type="t", payload=b"b", ttl_ms=5, live_maxlen=3, mode="best_effort"),
        NewFrame(frame_type="t", payload=bytearray(b"{}"), mode="summary"),  # type: ignore[arg-type]
    ]
    out = outgoing([frame(bytearray(b"0")), *frames])
    assert {type(each) for each in out.frames} == {Frame}
    assert {type(each.payload) for each in out.frames} == {bytes}
    assert out.frames == (
        frame(b"0"),
        frame(b"a"),
        frame(b"b", ttl_ms=5, mode="best_effort"),
        frame(b"{}", mode="summary"),
    )


def test_each_mode_is_trimmed_by_its_own_limit() -> None:
    mixed = outgoing([frame(), frame(b"{}", mode="summary"), frame(mode="best_effort"), frame()])
    assert mixed.trims(5) == (
        Trim("durable", 5),
        Trim("summary", 64, exact=False),
        Trim("best_effort", 1_000, exact=False),
    )
    assert outgoing([frame()]).trims(0) == (Trim("durable", 10_000, exact=False),)
    few = NewFrame(frame_type="t", payload=b"", mode="best_effort", live_maxlen=7)
    assert outgoing([few, frame(mode="best_effort")]).trims(5) == (
        Trim("best_effort", 7, exact=False),
    )


def test_short_lived_frames_end_after_twice_the_last_time_to_live() -> None:
    lives = [frame(mode="best_effort", ttl_ms=ttl) for ttl in (9_000, 5_000, 0)]
    assert outgoing(lives).expire_ms == 10_000
    assert outgoing(lives[2:]).expire_ms == 0


def test_patches_are_known_by_their_place_and_a_number_counts_once() -> None:
    out = outgoing(
        [
            frame(b'{"a":"x"}', mode="summary", seq=1),
            frame(),
            frame(b'{"b":"x"}', mode="summary"),
            frame(b'{"a":"x"}', mode="summary", seq=1),
            frame(b'{"c":"x"}', mode="summary"),
        ]
    )
    assert out.patches == {0: {"a": "x"}, 2: {"b": "x"}, 4: {"c": "x"}}


@pytest.mark.parametrize(
    ("frames", "error", "match"),
    [
        ([], InvalidInput, "at least one"),
        ([frame(b"x" * 65_537)], RetentionLimitExceeded, "65536"),
        ([frame(b"x" * 65_537, mode="summary")], RetentionLimitExceeded, "65536"),
        ([frame(b"x" * 65_536)] * 129, PayloadTooLarge, "one call"),
        ([frame(encoding="hex")], InvalidInput, "encoding"),
        ([frame("text")], InvalidInput, "payload"),
        ([frame(ts=-1)], InvalidInput, "ts"),
        ([frame(seq=-1)], InvalidInput, "seq"),
        ([frame(ttl_ms=-1)], InvalidInput, "ttl_ms"),
        ([frame(mode="loud")], InvalidInput, "mode"),
        ([frame(mode="")], InvalidInput, "mode"),
        ([NewFrame(frame_type="t", payload=b"", live_maxlen=-1)], InvalidInput, "live_maxlen"),
        ([frame(), frame(b"", mode="summary")], InvalidInput, "not valid JSON"),
        ([frame(), frame(b"[]", mode="summary")], InvalidInput, "must be a JSON object"),
        (
            [NewFrame(frame_type="t", payload=b"{}", mode="summary", patch_kind="json-patch")],
            InvalidInput,
            "unsupported patch_kind",
        ),
    ],
)
async def test_frames_are_refused_before_the_store_is_asked(
    frames: list[Frame], error: type[FlowFabricError], match: str
) -> None:
    streams = Streams(deps_without_store())
    with pytest.raises(error, match=match):
        await streams.append(LeaseProof(_ID, "lease", 3, "attempt"), 0, frames)


def fields(frame: Frame) -> dict[str, object]:
    """The frame as a reader sees it."""
    shown: dict[str, object] = msgspec.json.decode(encode(StoredFrame("5-0", frame)))["fields"]
    return shown


def test_fields_are_sorted_and_optional_ones_appear_when_set() -> None:
    plain = fields(Frame(frame_type="stdout", payload=b"\x00", ts=5))
    assert plain == {"frame_type": "stdout", "payload": "AA==", "ts": 5}
    full = Frame(frame_type="t", payload=b"", ts=1, correlation_id="c", summary_version=2, ttl_ms=3)
    shown = fields(full)
    assert list(shown) == sorted(shown)
    assert {"correlation_id", "summary_version", "ttl_ms"} <= set(shown)


def test_one_call_has_a_bounded_number_of_frames() -> None:
    assert len(outgoing([frame()] * MAX_FRAMES).frames) == MAX_FRAMES
    with pytest.raises(InvalidInput, match=f"frames: at most {MAX_FRAMES}"):
        outgoing([frame()] * (MAX_FRAMES + 1))
