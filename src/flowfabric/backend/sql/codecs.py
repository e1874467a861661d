"""Values as bytes: one encoder for all, one decoder per type, made once."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from flowfabric.backend.reference.tables import JournalRow, StreamMeta
from flowfabric.backend.types import StoredSummary, Worker
from flowfabric.core.events import LogEntry
from flowfabric.core.graph import Edge, Flow, Group
from flowfabric.core.limits.asks import Reservation
from flowfabric.core.limits.budgets import Budget, Ledger
from flowfabric.core.limits.gates import Gate
from flowfabric.core.record import Attempt, Record
from flowfabric.errors import Corruption
from flowfabric.operations.streams import Frame

T = TypeVar("T")

encode: Final[Callable[[Any], bytes]] = msgspec.msgpack.Encoder().encode


def _decoder(kind: type[T]) -> Callable[[bytes], T]:
    decode = msgspec.msgpack.Decoder(kind).decode

    def read(body: bytes) -> T:
        try:
            return decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as fault:
            raise Corruption(f"stored {kind.__name__}: {fault}") from fault

    return read


decode_record: Final = _decoder(Record)
decode_attempt: Final = _decoder(Attempt)
decode_entry: Final = _decoder(LogEntry)
decode_stream: Final = _decoder(StreamMeta)
decode_summary: Final = _decoder(StoredSummary)
decode_frame: Final = _decoder(Frame)
decode_journal: Final = _decoder(JournalRow)
decode_flow: Final = _decoder(Flow)
decode_edge: Final = _decoder(Edge)
decode_group: Final = _decoder(Group)
decode_worker: Final = _decoder(Worker)
decode_budget: Final = _decoder(Budget)
decode_ledger: Final = _decoder(Ledger)
decode_reservation: Final = _decoder(Reservation)
decode_gate: Final = _decoder(Gate)
