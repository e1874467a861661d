"""Checks of plain arguments: one clear error, before anything is sent to a store."""

from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

import msgspec

from flowfabric.errors import Corruption, InvalidInput, PayloadTooLarge

P = ParamSpec("P")
V = TypeVar("V")

# The encoding of input that is given as JSON.
JSON: Final = "json"
MAX_INSTANT: Final = 2**53 - 1


def whole(value: object, field: str, low: int = 0, high: int = MAX_INSTANT) -> int:
    """An integer within bounds. Booleans and floats, NaN among them, are not integers."""
    number = integer(value, field)
    if not low <= number <= high:
        raise InvalidInput(f"{field}: expected {low}..{high}, got {_short(number)}")
    return number


def integer(value: object, field: str) -> int:
    """An integer of any size, for values that are clamped instead of refused."""
    if type(value) is not int:
        raise InvalidInput(f"{field}: expected an integer, got {_kind(value)}")
    return value


def body(value: object, field: str, most: int) -> bytes:
    """Bytes as they are; nothing on the way looks inside."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise InvalidInput(f"{field}: expected bytes, got {_kind(value)}")
    if len(value) > most:
        raise PayloadTooLarge(f"{field}: at most {most} bytes, got {len(value)}")
    return value if isinstance(value, bytes) else bytes(value)


def json_input(arguments: object, plain: bytes, field: str, encoding: str) -> bytes | None:
    """The text of JSON input, in its shortest form; None when there is none. It takes the place of
    bytes, so a caller gives only one of them."""
    if isinstance(arguments, msgspec.Raw):
        arguments = bytes(arguments)
    elif isinstance(arguments, str):
        arguments = arguments.encode(errors="replace")
    if arguments is None or arguments == b"null":
        return None
    if plain:
        raise InvalidInput(f"input, {field}: expected only one of them")
    if encoding not in ("", JSON):
        raise InvalidInput(f"payload_encoding: input is {JSON}, not {encoding!r:.80}")
    try:
        text = arguments if isinstance(arguments, bytes) else msgspec.json.encode(arguments)
        text = msgspec.json.format(text, indent=-1)
    except (ValueError, TypeError, RecursionError) as fault:
        raise InvalidInput(f"input: expected JSON: {fault}") from None
    if text[:1] not in (b"{", b"["):
        raise InvalidInput("input: expected an object or an array; input_payload takes all else")
    return text


def stored(where: str, check: Callable[P, V], *args: P.args, **kwargs: P.kwargs) -> V:
    """What a check makes of a stored value. One that it refuses is corrupt."""
    try:
        return check(*args, **kwargs)
    except InvalidInput as fault:
        raise Corruption(f"{where}: {fault.detail}") from fault


def _short(number: int) -> str:
    """Digits, unless there are so many that Python refuses to print them."""
    return str(number) if number.bit_length() <= 64 else f"{number.bit_length()} bits"


def _kind(value: object) -> str:
    return type(value).__name__
