"""Encoding of values: JSON, and bytes as they are."""

from functools import lru_cache
from typing import Any, Final

import msgspec

JSON: Final = "json"
RAW: Final = "bytes"
# JSON in which some values are named results of upstream members, to be put in their place.
REFERRING: Final = "json+upstreams"

# Errors of decoding: malformed bytes, values of another type, a type without a codec.
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, TypeError, NotImplementedError)


class Unencodable(TypeError):
    """A value that no codec can write."""


class Undecodable(ValueError):
    """Bytes that are not what was expected."""


def encode(value: object) -> tuple[bytes, str]:
    """The value's bytes and the name of their encoding."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), RAW
    return to_json(value), JSON


def to_json(value: object) -> bytes:
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError) as fault:
        raise Unencodable(f"{type(value).__name__} cannot be encoded: {fault}") from fault


def decode(body: bytes | None, encoding: str, type_: Any = Any) -> Any:
    """The value of such bytes. Without a type, bytes that name no encoding stay what they are."""
    if body is None:
        return None
    if type_ is bytes:
        return body if encoding in ("", RAW) else from_json(body, bytes)
    if encoding == RAW or (not encoding and type_ is Any):
        return body
    return from_json(body, type_)


def from_json(body: bytes | str, type_: Any = Any) -> Any:
    return read(decoder_of(type_), body)


def read(decoder: msgspec.json.Decoder[Any], body: bytes | str) -> Any:
    try:
        return decoder.decode(body)
    except _UNREADABLE as fault:
        raise Undecodable(str(fault)) from fault


def convert(value: object, type_: Any) -> Any:
    """A value read as plain JSON, as the type wanted."""
    try:
        return msgspec.convert(value, type_, dec_hook=_read_foreign)
    except _UNREADABLE as fault:
        raise Undecodable(str(fault)) from fault


def decoder_of(type_: Any) -> msgspec.json.Decoder[Any]:
    try:
        return _cached_decoder(type_)
    except TypeError as fault:
        if "unhashable" not in str(fault):
            raise
        return msgspec.json.Decoder(type_, dec_hook=_read_foreign)


@lru_cache(maxsize=1024)
def _cached_decoder(type_: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type_, dec_hook=_read_foreign)


def _write_foreign(value: object) -> object:
    """Values of libraries that are not required: pydantic models by their own rules."""
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json")
    raise NotImplementedError(f"no codec for {type(value).__name__}")


def _read_foreign(type_: Any, value: object) -> object:
    validate = getattr(type_, "model_validate", None)
    if validate is not None:
        return validate(value)
    if isinstance(type_, type) and isinstance(value, type_):
        return value
    raise NotImplementedError(f"no codec for {type_}")


_encoder: Final = msgspec.json.Encoder(enc_hook=_write_foreign)
