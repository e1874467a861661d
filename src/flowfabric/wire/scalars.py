"""Scalars of the bodies that are not declared as operations."""

from typing import Annotated

import msgspec

from flowfabric.operations.types import UUID_PATTERN, Answer, Body

Uuid = Annotated[str, msgspec.Meta(pattern=UUID_PATTERN, description="a lower-case UUID")]
Byte = Annotated[int, msgspec.Meta(ge=0, le=255)]
# Base64 text or an array of numbers on the way in, base64 on the way out.
Bytes = bytes | list[Byte]


def to_bytes(value: Bytes) -> bytes:
    return value if isinstance(value, bytes) else bytes(value)


def some_bytes(value: Bytes | None) -> bytes | None:
    return None if value is None else to_bytes(value)


class Empty(Body, frozen=True):
    """The body of a request that needs none."""


class Tagged(Answer, frozen=True, kw_only=True, rename="pascal"):
    """One of several outcomes, as `{"Name": {…}}`: exactly one member is set."""
