"""Parameters of paths, each read by the type it is declared with."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, get_args, get_origin

from flowfabric.core.ids import check_text, parse_execution_id
from flowfabric.core.partitions import PartitionCounts
from flowfabric.errors import FlowFabricError, InvalidParameter
from flowfabric.operations.declaration import Operation
from flowfabric.operations.types import (
    ExecutionId,
    Owned,
    Syntax,
    WorkerId,
)

Reader = Callable[[str, PartitionCounts], Any]

_MAX_DIGITS: Final = 10


def path_readers(declared: Operation[..., Any]) -> Mapping[str, Reader]:
    return {name: reader_of(name, declared.parameters[name]) for name in declared.path_names}


def reader_of(name: str, kind: Any) -> Reader:
    marks = kind.__metadata__ if get_origin(kind) is Annotated else ()
    plain = get_args(kind)[0] if marks else kind
    syntax = next((one for one in marks if isinstance(one, Syntax)), None)
    if Owned("execution") in marks:
        return parse_execution_id
    if syntax is not None:
        return lambda text, counts: syntax.check(text, name)
    if plain is int:
        return lambda text, counts: _number(text, name)
    return lambda text, counts: check_text(text, name, 256, allow_empty=False, allow_control=False)


def _number(text: str, name: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    if not is_number or int(text) >= 2**32:
        raise InvalidParameter(f"{name}: expected a whole number below 2**32")
    return int(text)


def _attempt_index(text: str, counts: PartitionCounts) -> str:
    """The index of an attempt, or `latest`."""
    try:
        return text if text == "latest" else str(_number(text, "attempt_index"))
    except InvalidParameter:
        raise InvalidParameter(
            "attempt_index: expected the index of an attempt, or latest"
        ) from None


# The parameters of the routes that are written by hand.
HAND_WRITTEN: Final[Mapping[str, Reader]] = {
    "execution_id": reader_of("execution_id", ExecutionId),
    "attempt_index": _attempt_index,
    "worker_id": reader_of("worker_id", WorkerId),
}


def read_path(
    readers: Mapping[str, Reader], segments: list[str], counts: PartitionCounts
) -> dict[str, Any]:
    try:
        return {
            name: read(text, counts)
            for (name, read), text in zip(readers.items(), segments, strict=True)
        }
    except InvalidParameter:
        raise
    except FlowFabricError as fault:
        raise InvalidParameter(fault.detail) from None
