"""Submissions as a server wants them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from flowfabric.errors import ConfigError
from flowfabric.wire import executions as wire

# Of the server's limits for one body: what bytes become as base64, and some room for the rest.
MOST_BYTES: Final = 5 * 1024 * 1024
_ITEM_BYTES: Final = 1_024


def chunks(sizes: Sequence[int], most: int = wire.MOST_BATCHED) -> Iterator[slice]:
    """Cut a batch so that no piece has too many items or too many bytes."""
    start, weight = 0, 0
    for place, size in enumerate(sizes):
        weight += size + _ITEM_BYTES
        if place > start and (place - start == most or weight > MOST_BYTES):
            yield slice(start, place)
            start, weight = place, size + _ITEM_BYTES
    if sizes:
        yield slice(start, len(sizes))


def tags_of(tags: Mapping[str, object] | None) -> dict[str, str] | None:
    """As they were given: whether values are texts is for the engine to say."""
    return None if tags is None else dict(tags)  # type: ignore[arg-type]


def policy_of(policy: bytes | str | Mapping[str, object] | None) -> msgspec.Raw | msgspec.UnsetType:
    if policy is None or policy in ("", b""):
        return msgspec.UNSET
    if isinstance(policy, bytes | str):
        return msgspec.Raw(policy if isinstance(policy, bytes) else policy.encode())
    try:
        return msgspec.Raw(msgspec.json.encode(policy))
    except TypeError as fault:
        raise ConfigError(f"policy: {fault}") from None
