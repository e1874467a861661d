"""Leases and their holders: what a holder shows, and what this process knows of it."""

from collections import OrderedDict
from typing import Final, Protocol

import msgspec

from flowfabric.core.plan import Fence
from flowfabric.core.record import Record

_REMEMBERED: Final = 4_096


class Proof(Protocol):
    """The execution a request is about, and the fence it shows."""

    @property
    def execution_id(self) -> str: ...

    @property
    def lease_id(self) -> str: ...

    @property
    def lease_epoch(self) -> int: ...

    @property
    def attempt_id(self) -> str: ...


class Held(msgspec.Struct, frozen=True, gc=False):
    """The execution an attempt-bound call is about, and the proof that it may be made.

    `record` is what the caller knows from its claim; with it no decision needs to read first.
    """

    execution_id: str
    lease_id: str = ""
    lease_epoch: int = 0
    attempt_id: str = ""
    source: str = ""
    record: Record | None = None

    @property
    def fence(self) -> Fence | None:
        """The fence a claim gave, which needs no check."""
        if self.record is None:
            return None
        return Fence(self.lease_id, self.lease_epoch, self.attempt_id)


def held_by(record: Record) -> Held:
    """The holding a claim gave, from the record it answered."""
    return Held(
        record.execution_id,
        record.lease_id,
        record.lease_epoch,
        record.attempt_id,
        "",
        record,
    )


class LeasedRecords:
    """The records of leases that were handed out here, as they were when they were claimed, so that
    what their holders decide needs no read.

    They are hints and prove nothing: a plan made from one is guarded by the fence, and the store
    refuses it once the lease has passed on. Whatever is not remembered is read."""

    def __init__(self, most: int = _REMEMBERED) -> None:
        self._most = most
        self._records: OrderedDict[str, Record] = OrderedDict()

    def remember(self, record: Record) -> None:
        self._records[record.lease_id] = record
        if len(self._records) > self._most:
            self._records.popitem(last=False)

    def held(self, proof: Proof) -> Held:
        """The holding that a request shows, with its record if that is known here."""
        return _held(self._records.get(proof.lease_id), proof)

    def ended(self, proof: Proof) -> Held:
        """The holding that a request shows and ends: its record is not needed again."""
        return _held(self._records.pop(proof.lease_id, None), proof)


def _held(record: Record | None, proof: Proof) -> Held:
    """A fence that is not the one that was handed out finds no record."""
    if (
        record is None
        or record.lease_epoch != proof.lease_epoch
        or record.attempt_id != proof.attempt_id
        or record.execution_id != proof.execution_id
    ):
        return Held(proof.execution_id, proof.lease_id, proof.lease_epoch, proof.attempt_id)
    return held_by(record)
