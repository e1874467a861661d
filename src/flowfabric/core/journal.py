"""Steps that an execution has recorded."""

import msgspec


class JournalEntry(msgspec.Struct, frozen=True):
    """One named step; `seq` counts the uses of the name."""

    name: str
    seq: int
    digest: str
    outcome: bytes
