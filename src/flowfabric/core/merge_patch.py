"""The rolling summary of an attempt: a JSON object that each patch merges into.

Patches follow JSON Merge Patch with objects at the root only. A member set to null is deleted, so
a null that is meant to stay is written as the string `__ff_null__`; arrays are replaced, never
merged. Numbers are carried as the text they were written in: nothing is computed with them, so
any size and any precision comes out as it went in.
"""

import json
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from flowfabric.errors import Corruption, InvalidInput, RetentionLimitExceeded

PATCH_KIND: Final = "json-merge-patch"
NULL: Final = "__ff_null__"
MAX_DOCUMENT_BYTES: Final = 256 * 1024
# Objects below the root of a patch, and objects and arrays of a document with its root.
MAX_PATCH_OBJECTS: Final = 16
MAX_DOCUMENT_LEVELS: Final = 32

Object = dict[str, Any]
_CONTAINERS: Final = (dict, list)


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no JSON number")


_decode = json.JSONDecoder(
    parse_int=msgspec.Raw, parse_float=msgspec.Raw, parse_constant=_no_number
).decode
_encode = msgspec.json.Encoder().encode


def read_patch(payload: bytes) -> Object:
    """The patch in a payload; refuses one that no document could take.

    All containers of a patch become part of the document, so a patch that nests too deep for one is
    refused without reading it.
    """
    try:
        patch = _parse(payload)
    except ValueError:
        raise InvalidInput("patch payload is not valid JSON") from None
    except RecursionError:
        raise InvalidInput("patch_depth_exceeded") from None
    if not isinstance(patch, dict):
        raise InvalidInput("patch must be a JSON object")
    objects, levels = _depth(patch)
    if objects > MAX_PATCH_OBJECTS + 1:
        raise InvalidInput("patch_depth_exceeded")
    if levels > MAX_DOCUMENT_LEVELS:
        raise RetentionLimitExceeded(f"summary document: at most {MAX_DOCUMENT_LEVELS} levels")
    return patch


def read_document(stored: bytes) -> Object:
    """A document as it was stored by an earlier patch."""
    try:
        document = _parse(stored)
    except (ValueError, RecursionError) as fault:
        raise Corruption(f"summary document cannot be read: {fault}") from fault
    if not isinstance(document, dict):
        raise Corruption("summary document is not an object")
    return document


def write_document(document: Object) -> bytes:
    """A document as it is stored."""
    return _encode(document)


def size_fault(encoded: bytes) -> RetentionLimitExceeded | None:
    """The error of a document that has grown too large; None if it has not."""
    if len(encoded) <= MAX_DOCUMENT_BYTES:
        return None
    return RetentionLimitExceeded(
        f"summary document: at most {MAX_DOCUMENT_BYTES} bytes, got {len(encoded)}"
    )


def summary_too_large(size: int) -> RetentionLimitExceeded:
    """The refusal of a store, which checks once more."""
    return RetentionLimitExceeded(f"summary of {size} bytes, at most {MAX_DOCUMENT_BYTES}")


def merge_all(document: Object, patches: Iterable[Object]) -> Object:
    for patch in patches:
        document = merge(document, patch)
    return document


def merge(document: Object, patch: Object) -> Object:
    """A new document; the one given stays as it was and shares what the patch does not touch."""
    merged = dict(document)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict):
            target = merged.get(name)
            merged[name] = merge(target if isinstance(target, dict) else {}, value)
        else:
            merged[name] = _literal(value)
    return merged


def _literal(value: Any) -> Any:
    """A value that replaces what was there, with every sentinel in it turned into null."""
    if isinstance(value, str):
        return None if value == NULL else value
    if isinstance(value, list):
        return [_literal(each) for each in value]
    if isinstance(value, dict):
        return {name: _literal(each) for name, each in value.items()}
    return value


def _parse(body: bytes) -> Any:
    text = body.decode()
    value = _decode(text)
    if "\\u" in text:
        # JSON can escape half a surrogate pair, which is no character: encoding it fails.
        _encode(value)
    return value


def _depth(value: Any) -> tuple[int, int]:
    """The most objects, and the most objects and arrays, on one path from the value downwards; the
    value counts, too."""
    most_objects = most_levels = 0
    below: list[tuple[Any, int, int]] = [(value, 0, 0)]
    while below:
        one, objects, levels = below.pop()
        levels += 1
        if type(one) is dict:
            objects += 1
            one = one.values()
        below += [(child, objects, levels) for child in one if type(child) in _CONTAINERS]
        most_objects, most_levels = max(most_objects, objects), max(most_levels, levels)
    return most_objects, most_levels
