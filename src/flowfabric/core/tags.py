"""Tags: the string pairs users attach to executions and flows."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from flowfabric.core.ids import utf8_size
from flowfabric.errors import InvalidInput, InvalidTagKey

_KEY: Final = re.compile(r"[a-z][a-z0-9_]*\.[a-z0-9_][a-z0-9_.]*").fullmatch


def check_tag_keys(tags: Iterable[str]) -> None:
    """Refuse keys without a caller's prefix: names without a dot belong to the engine."""
    keys = tuple(tags)
    if not keys:
        raise InvalidInput("tags: expected at least one")
    for key in keys:
        if not isinstance(key, str) or _KEY(key) is None:
            raise InvalidTagKey(str(key))


def submitted_tags(value: object) -> dict[str, str]:
    """The tags of a new execution: any keys, values as text."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidInput(f"tags: expected an object, got {type(value).__name__}")
    return {_text(key, "a key"): _text(_coerced(tag), str(key)) for key, tag in value.items()}


def _coerced(value: object) -> object:
    """Scalars as JSON would write them; containers have no obvious text and stay as they are."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Collection):
        return value
    return str(value)


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"tags: {name}: expected a string, got {type(value).__name__}")
    if utf8_size(value) is None:
        raise InvalidInput(f"tags: {name}: not encodable as UTF-8")
    return value
