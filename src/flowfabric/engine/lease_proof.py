"""Who acts on an attempt: the fence a lease holder shows, and the record that goes with it."""

from collections import OrderedDict
from typing import Final, Protocol

import msgspec

from flowfabric.core.fence import Fence
from flowfabric.core.record import Record

_MOST_CACHED: Final = 4_096


class Fenced(Protocol):
    """A request about one execution, with the fence of its lease."""

    @property
    def execution_id(self) -> str: ...

    @property
    def lease_id(self) -> str: ...

    @property
    def lease_epoch(self) -> int: ...

    @property
    def attempt_id(self) -> str: ...


class LeaseProof(msgspec.Struct, frozen=True, gc=False):
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


def proof_from(record: Record) -> LeaseProof:
    """The proof that a claim gave, from the record it answered."""
    return LeaseProof(
        record.execution_id,
        record.lease_id,
        record.lease_epoch,
        record.attempt_id,
        "",
        record,
    )


class LeaseCache:
    """Records of the leases this process handed out, as they were when claimed, so that what
    lease holders decide needs no read.

    A record proves nothing: a plan made from one is guarded by the fence, and the store refuses it
    once the lease has passed on. A record that is not cached is read."""

    def __init__(self, most: int = _MOST_CACHED) -> None:
        self._most = most
        self._records: OrderedDict[str, Record] = OrderedDict()

    def remember(self, record: Record) -> None:
        self._records[record.lease_id] = record
        if len(self._records) > self._most:
            self._records.popitem(last=False)

    def proof(self, request: Fenced) -> LeaseProof:
        """The proof in a request, with its record if that is cached."""
        return _proof(self._records.get(request.lease_id), request)

    def end(self, request: Fenced) -> LeaseProof:
        """The proof in a request that ends the lease: its record is dropped from the cache."""
        return _proof(self._records.pop(request.lease_id, None), request)


def _proof(record: Record | None, request: Fenced) -> LeaseProof:
    """A fence that differs from the one handed out gets no record."""
    if (
        record is None
        or record.lease_epoch != request.lease_epoch
        or record.attempt_id != request.attempt_id
        or record.execution_id != request.execution_id
    ):
        return LeaseProof(
            request.execution_id, request.lease_id, request.lease_epoch, request.attempt_id
        )
    return proof_from(record)
