"""Tags: the string pairs users attach to executions and flows."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from flowfabric.core.bounds import MAX_TAG_BYTES, MAX_TAGS, check_number
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
    check_number(value, "tags", MAX_TAGS)
    tags = {_text(key, "a key"): _text(_coerced(tag), str(key)) for key, tag in value.items()}
    _check_bytes(tags)
    return tags


def merged_tags(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """The tags after a change, which must stay within the bounds. Tags that are beyond them
    already, by one that the engine added, may change as long as they do not grow."""
    tags = {**old, **new}
    if len(tags) > len(old):
        check_number(tags, "tags", MAX_TAGS)
    if _bytes_of(tags) > _bytes_of(old):
        _check_bytes(tags)
    return tags


def _check_bytes(tags: Mapping[str, str]) -> None:
    size = _bytes_of(tags)
    if size > MAX_TAG_BYTES:
        raise InvalidInput(f"tags: at most {MAX_TAG_BYTES} bytes together, got {size}")


def _bytes_of(tags: Mapping[str, str]) -> int:
    return sum((utf8_size(key) or 0) + (utf8_size(value) or 0) for key, value in tags.items())


def _coerced(value: object) -> object:
    """Scalars as JSON would write them; containers stay as they are and are refused."""
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
