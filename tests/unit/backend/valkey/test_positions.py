"""Positions in the log, as readers keep them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.backend.valkey.feed import (
    START,
    WHOLE,
    Place,
    place_of,
    read_positions,
    write_positions,
)
from flowfabric.errors import InvalidInput

_U16, _U64 = st.integers(0, 2**16 - 1), st.integers(0, 2**64 - 1)
_PLACES = st.builds(Place, _U64, _U64, _U16)


@given(st.dictionaries(_U16, _PLACES, max_size=300))
def test_positions_come_back_as_they_were(positions: dict[int, Place]) -> None:
    assert read_positions(write_positions(positions)) == positions


def test_the_layout_is_what_other_processes_read() -> None:
    written = write_positions({7: Place(1, 2, 3), 1: place_of("256-5")})
    assert written == bytes.fromhex(
        "01 0002"
        " 0001 0000000000000100 0000000000000005 ffff"
        " 0007 0000000000000001 0000000000000002 0003"
    )


def test_a_place_within_an_entry_is_before_its_end() -> None:
    assert START < Place(5, 1, 1) < Place(5, 1, 2) < Place(5, 1) < Place(5, 2, 1)
    assert place_of("5-1") == Place(5, 1, WHOLE)


@pytest.mark.parametrize(
    "cursor", [b"", b"\x01", b"\x01\x00", b"\x01\x00\x01", b"\x01\x00\x00\x00", b"\x04" + bytes(8)]
)
def test_what_was_not_written_here_is_refused(cursor: bytes) -> None:
    with pytest.raises(InvalidInput):
        read_positions(cursor)
