"""What is left of executions beside their declared operations."""

from typing import Annotated

import msgspec

from flowfabric.operations.types import Answer, Params

# Kept as it came: the engine reads policies itself, and remembers those it has read.
Policy = Annotated[
    msgspec.Raw,
    msgspec.Meta(extra_json_schema={"$ref": "#/components/schemas/ExecutionPolicy"}),
]

MOST_BATCHED = 200


class ExecutionContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler is given to work on."""

    input_payload: bytes
    execution_kind: str
    tags: dict[str, str]


class WaitQuery(Params, frozen=True, kw_only=True):
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=30_000)] = 0


class TagCount(Answer, frozen=True, kw_only=True):
    count: int
