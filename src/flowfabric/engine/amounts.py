"""Dimensions and amounts as callers give them: checked before anything is sent to a store."""

from collections.abc import Mapping, Sequence
from typing import Final

from flowfabric.core.ids import check_text
from flowfabric.core.limits.budgets import MAX_AMOUNT
from flowfabric.engine.checking import whole
from flowfabric.errors import InvalidInput

MOST_DIMENSIONS: Final = 64
_NAME_BYTES: Final = 256
_KEY_BYTES: Final = 1_024
_RESERVED: Final = frozenset({"breached_at", "_init"})


def check_names(names: Sequence[str]) -> None:
    """Dimension names: few, each once, and none that a store uses itself."""
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise InvalidInput("dimensions: expected a list of names")
    if len(names) > MOST_DIMENSIONS:
        raise InvalidInput(f"too_many_dimensions: limit={MOST_DIMENSIONS}, got={len(names)}")
    seen: set[str] = set()
    for name in names:
        check_text(name, "dimension", _NAME_BYTES, allow_empty=False, allow_control=False)
        if name in _RESERVED or ":" in name:
            raise InvalidInput(f"dimension {name}: reserved, or has a colon")
        if name in seen:
            raise InvalidInput(f"dimension {name}: given twice")
        seen.add(name)


def paired(names: Sequence[str], values: Sequence[int], what: str) -> dict[str, int]:
    """Amounts from two lists of equal length."""
    check_names(names)
    if isinstance(values, str) or not isinstance(values, Sequence) or len(values) != len(names):
        count = len(values) if isinstance(values, Sequence) else 0
        raise InvalidInput(
            f"dimension_{what}_array_mismatch: {len(names)} dimensions, {count} values"
        )
    return {name: amount(value, name) for name, value in zip(names, values, strict=True)}


def amounts_of(given: Mapping[str, int]) -> dict[str, int]:
    if not isinstance(given, Mapping):
        raise InvalidInput(f"dimensions: expected a mapping, got {type(given).__name__}")
    return paired(tuple(given), tuple(given.values()), "delta")


def amount(value: object, dimension: str) -> int:
    """A whole number that is exact everywhere, never negative."""
    return whole(value, f"dimension {dimension}", 0, MAX_AMOUNT)


def check_key(value: str, field: str, *, allow_empty: bool = True) -> str:
    return check_text(value, field, _KEY_BYTES, allow_empty=allow_empty)
