"""The scalars of bodies and answers, and the two kinds of struct everything else is made of."""

from typing import Annotated, Any, Final

import msgspec

UUID_PATTERN: Final = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
EXECUTION_PATTERN: Final = rf"^\{{fp:(0|[1-9][0-9]{{0,4}})\}}:{UUID_PATTERN[1:]}"

Uuid = Annotated[str, msgspec.Meta(pattern=UUID_PATTERN, description="a lower-case UUID")]
ExecutionId = Annotated[
    str, msgspec.Meta(pattern=EXECUTION_PATTERN, description="`{fp:N}:<uuid>`, the partition first")
]
Timestamp = Annotated[int, msgspec.Meta(description="Unix time in ms")]
Byte = Annotated[int, msgspec.Meta(ge=0, le=255)]
# Base64 text or an array of numbers on the way in, base64 on the way out.
Bytes = bytes | list[Byte]


def one_of(*names: str) -> msgspec.Meta:
    """A text for which the document names the choices; the engine says which it does not know."""
    return msgspec.Meta(extra_json_schema={"enum": list(names)})


def to_bytes(value: Bytes) -> bytes:
    return value if isinstance(value, bytes) else bytes(value)


def some_bytes(value: Bytes | None) -> bytes | None:
    return None if value is None else to_bytes(value)


class Part(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A piece of a request: a member nobody knows is refused, null is the same as absent."""


class Body(Part, frozen=True, kw_only=True):
    """A whole request body. A caller's `now` is accepted and means nothing."""

    now: Any = None


class Empty(Body, frozen=True):
    """The body of a request that needs none."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of an answer; readers skip members of a newer release."""


class Tagged(Answer, frozen=True, kw_only=True, rename="pascal"):
    """One of several outcomes, as `{"Name": {…}}`: exactly one member is set."""


class Params(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query of a request. What may be absent is unset, not None: a query has no null."""
