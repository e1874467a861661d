"""Frames and journal entries as they are stored."""

import pytest

from flowfabric.backend.valkey.envelopes import open_frame, open_step, seal_frame, seal_step
from flowfabric.core.journal import JournalEntry
from flowfabric.errors import Corruption
from flowfabric.operations.streams import Frame

EVERY_BYTE = bytes(range(256))


def test_a_frame_comes_back_with_what_the_store_added() -> None:
    frame = Frame(
        frame_type="Ausgabe ✓",
        payload=EVERY_BYTE,
        encoding="base64",
        source="s" * 128,
        mode="summary",
        correlation_id="c" * 1024,
        seq=2**53 - 1,
        ttl_ms=2**51,
        ts=17,
    )
    assert open_frame(seal_frame(frame), "summary", 99, 0) == frame
    bare = Frame(frame_type="", payload=b"")
    stamped = Frame(frame_type="", payload=b"", ts=99, mode="durable", summary_version=3)
    assert open_frame(seal_frame(bare), "durable", 99, 3) == stamped


def test_a_step_comes_back() -> None:
    entry = JournalEntry("n" * 1024, 2**53 - 1, "d" * 128, EVERY_BYTE)
    assert open_step(seal_step(entry)) == entry


@pytest.mark.parametrize("stored", [b"", b"\x00", b"\x00\x09abc", b"\x00\x01\xc1"])
def test_damage_is_told(stored: bytes) -> None:
    with pytest.raises(Corruption):
        open_step(stored)
    with pytest.raises(Corruption):
        open_frame(stored, "durable", 0, 0)
