"""The fence: proof that a caller still owns the attempt it speaks for."""

from typing import Final

import msgspec

from flowfabric.errors import InvalidInput, PartialFenceTriple

# Exact in a double, which is what some stores count with.
LAST_EPOCH: Final = 2**53 - 1


class Fence(msgspec.Struct, frozen=True, gc=False):
    """Lease, epoch and attempt together; any of them being stale makes the whole stale."""

    lease_id: str
    lease_epoch: int
    attempt_id: str


def fence_from(
    lease_id: str | None, lease_epoch: int | None, attempt_id: str | None
) -> Fence | None:
    """The fence a caller sent, or None when it sent none of it."""
    if lease_id and lease_epoch and attempt_id:
        _check_types(lease_id, lease_epoch, attempt_id)
        return Fence(lease_id, lease_epoch, attempt_id)
    parts = {"lease_id": lease_id, "lease_epoch": lease_epoch, "attempt_id": attempt_id}
    absent = [name for name, value in parts.items() if not value]
    if len(absent) == len(parts):
        return None
    raise PartialFenceTriple(f"missing {', '.join(absent)}")


def _check_types(lease_id: object, lease_epoch: object, attempt_id: object) -> None:
    if type(lease_epoch) is not int or not 1 <= lease_epoch <= LAST_EPOCH:
        raise InvalidInput(f"lease_epoch: expected an integer in 1..{LAST_EPOCH}")
    for name, value in (("lease_id", lease_id), ("attempt_id", attempt_id)):
        if not isinstance(value, str):
            raise InvalidInput(f"{name}: expected a string, got {type(value).__name__}")
