"""Where a reader of the log stands: per partition the last entry it has seen, as opaque bytes."""

from struct import Struct
from typing import Final, NamedTuple

from flowfabric.core.pages import check_store
from flowfabric.errors import InvalidInput

TAG: Final = 0x01

# Stands for all events of an entry, however many it has.
WHOLE: Final = 0xFFFF

_HEAD: Final = Struct(">BH")
_PLACE: Final = Struct(">HQQH")


class Place(NamedTuple):
    """Behind which event of which log entry: `seen` counts the entry's events already seen."""

    ms: int
    seq: int
    seen: int = WHOLE

    @property
    def entry(self) -> str:
        return f"{self.ms}-{self.seq}"


START: Final = Place(0, 0)

# By partition; one that is absent was never read, or had nothing to read yet.
Positions = dict[int, Place]


def write_positions(positions: Positions) -> bytes:
    places = [_PLACE.pack(part, *positions[part]) for part in sorted(positions)]
    return b"".join((_HEAD.pack(TAG, len(places)), *places))


def read_positions(cursor: bytes) -> Positions:
    check_store(cursor, TAG)
    if len(cursor) < _HEAD.size:
        raise InvalidInput(f"cursor: expected at least {_HEAD.size} bytes, got {len(cursor)}")
    _, count = _HEAD.unpack_from(cursor)
    size = _HEAD.size + count * _PLACE.size
    if len(cursor) != size:
        raise InvalidInput(f"cursor: expected {size} bytes, got {len(cursor)}")
    return {
        part: Place(ms, seq, seen)
        for part, ms, seq, seen in _PLACE.iter_unpack(cursor[_HEAD.size :])
    }


def place_of(entry_id: str) -> Place:
    """Behind all events of an entry."""
    ms, _, seq = entry_id.partition("-")
    return Place(int(ms), int(seq))
