"""What a store and its users must agree on before they begin: partition counts, and that it is not
being moved."""

from typing import Final

import msgspec

from flowfabric.backend.base import Backend
from flowfabric.backend.moving import MARKER, PARTITIONS, marker_of
from flowfabric.backend.types import ConfigPut
from flowfabric.core.ids import PartitionCounts
from flowfabric.errors import PartitionMismatch

_FAMILIES: Final = ("flow", "budget", "quota")


async def agree_on_partitions(backend: Backend, counts: PartitionCounts) -> None:
    """Store the partition counts on first use; later ones must be equal. Refuses a store that is
    the source of a move, or its unfinished target."""
    await _refuse_moved(backend)
    configured = {f"num_{name}_partitions": getattr(counts, name) for name in _FAMILIES}
    put = ConfigPut(PARTITIONS, 0, msgspec.json.encode(configured))
    (answer,) = await backend.config_put([put])
    if answer.applied:
        return
    stored = _stored_counts(answer.document.body)
    for name, wanted in configured.items():
        found = stored.get(name, 0)
        if found != wanted:
            raise PartitionMismatch(
                f"{name}: stored={found}, config={wanted}; the counts of a store cannot change"
            )


async def counts_of(backend: Backend) -> PartitionCounts | None:
    """The partition counts of a store; None when there are none that can be read."""
    (found,) = await backend.config_get([PARTITIONS])
    return counts_in(found.body) if found else None


def counts_in(body: bytes) -> PartitionCounts | None:
    """The counts that a stored document names; None if it cannot be read."""
    stored = _stored_counts(body)
    try:
        return PartitionCounts(**{name: stored[f"num_{name}_partitions"] for name in _FAMILIES})
    except KeyError:
        return None


def _stored_counts(body: bytes) -> dict[str, int]:
    """The stored counts; empty when they cannot be read."""
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


async def _refuse_moved(backend: Backend) -> None:
    (document,) = await backend.config_get([MARKER])
    marker = marker_of(document.body if document else None)
    if marker is not None:
        raise marker.refusal(backend.describe().family)
