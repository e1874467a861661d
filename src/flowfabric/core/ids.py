"""Identifiers: reading them strictly at the edge, taking them apart cheaply inside.

Checks accept anything and answer with the value or `InvalidInput`, which names the field and the
reason but never repeats the value: it may be long, hostile or secret.
"""

import re
from typing import Final, NewType
from uuid import NAMESPACE_URL, UUID, uuid5

from flowfabric.core.partitions import MAX_INDEX, PartitionCounts, parse_index
from flowfabric.errors import InvalidInput

ExecutionId = NewType("ExecutionId", str)
"""`{fp:N}:<uuid>`: the partition is part of the id, so nobody has to look it up."""

MAX_LANE_BYTES: Final = 64
MAX_NAMESPACE_BYTES: Final = 128
MAX_WORKER_ID_BYTES: Final = 256

TAG: Final = "{fp:"
UUID_LENGTH: Final = 36
_UUID_PART: Final = slice(-UUID_LENGTH, None)
_INDEX_PART: Final = slice(len(TAG), -UUID_LENGTH - len("}:"))
_UUID_PATTERN: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_NOT_UUID: Final = "expected a lower-case UUID with hyphens"

_UUID: Final = re.compile(_UUID_PATTERN).fullmatch
_EXECUTION_ID: Final = re.compile(rf"\{{fp:(0|[1-9][0-9]{{0,4}})\}}:{_UUID_PATTERN}").fullmatch

_LANE: Final = re.compile(rf"[ -+\--~]{{1,{MAX_LANE_BYTES}}}").fullmatch
_SCHEDULE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}").fullmatch
_BAD_LANE_CHARACTER: Final = re.compile(r"[^ -+\--~]").search
_ASCII_NAMESPACE: Final = re.compile(rf"[!-9;-z|~]{{1,{MAX_NAMESPACE_BYTES}}}").fullmatch
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]").search
_SPACE_OR_CONTROL: Final = re.compile(r"[\s\x00-\x1f\x7f-\x9f]").search
_KEY_SYNTAX: Final = re.compile(r"[:{}]").search


def parse_execution_id(text: object, counts: PartitionCounts | None = None) -> ExecutionId:
    """The id in its one canonical spelling; with `counts` also that its partition exists."""
    limit = MAX_INDEX + 1 if counts is None else counts.flow
    if isinstance(text, str) and (match := _EXECUTION_ID(text)) and int(match[1]) < limit:
        return ExecutionId(text)
    raise InvalidInput(f"execution_id: {_why_no_execution_id(text)}")


def _why_no_execution_id(text: object) -> str:
    if not isinstance(text, str):
        return _not_text(text)
    index, closing, uuid = text.removeprefix(TAG).partition("}:")
    if not text.startswith(TAG) or not closing:
        return "missing tag, expected {fp:N}:<uuid>"
    if parse_index(index) is None:
        return f"invalid partition index, expected 0 to {MAX_INDEX}"
    if _UUID(uuid) is None:
        return f"invalid UUID suffix, {_NOT_UUID}"
    return "partition index out of range, this deployment has fewer partitions"


def partition_of(execution_id: str) -> int:
    """The partition a canonical id carries."""
    return int(execution_id[_INDEX_PART])


def uuid_of(execution_id: str) -> str:
    """The UUID a canonical id carries."""
    return execution_id[_UUID_PART]


def compose(partition: int, uuid: str) -> ExecutionId:
    """The id of that UUID in that partition."""
    return ExecutionId(f"{{fp:{partition}}}:{uuid}")


def for_flow(counts: PartitionCounts, flow_id: str, uuid: str) -> ExecutionId:
    """An id for a member of a flow: it must live where the flow lives."""
    return compose(counts.of_flow(flow_id), uuid)


def solo(counts: PartitionCounts, lane: str, uuid: str, shards: int = 1) -> ExecutionId:
    """An id for standalone work of a lane."""
    return compose(counts.of_lane(lane, uuid, shards), uuid)


def keyed(counts: PartitionCounts, namespace: str, key: str, uuid: str) -> ExecutionId:
    """An id next to its idempotency key, so that both are written in one step."""
    return compose(counts.of_key(namespace, key), uuid)


def parse_uuid(text: object, field: str) -> str:
    """A UUID of any version, lower-case and hyphenated: another spelling would be another key."""
    if isinstance(text, str) and _UUID(text):
        return text
    raise InvalidInput(f"{field}: {_NOT_UUID}")


def check_lane(value: object, field: str = "lane_id") -> str:
    """A lane name: printable ASCII without commas."""
    if isinstance(value, str) and _LANE(value):
        return value
    raise InvalidInput(f"{field}: {_why_no_lane(value)}")


def check_schedule_id(value: object, field: str = "schedule_id") -> str:
    if isinstance(value, str) and _SCHEDULE(value):
        return value
    raise InvalidInput(
        f"{field}: expected 1 to 128 letters, digits and . _ : -, a letter or digit first"
    )


def _why_no_lane(value: object) -> str:
    if not isinstance(value, str):
        return _not_text(value)
    if not value:
        return "empty"
    if bad := _BAD_LANE_CHARACTER(value):
        # All characters before the first bad one are ASCII: its index counts bytes.
        return f"non-printable or ',' at byte {bad.start()}"
    return f"too long ({len(value)} bytes, at most {MAX_LANE_BYTES})"


def check_namespace(value: object, field: str = "namespace") -> str:
    """A namespace: no blanks, and nothing that keys made of it use as punctuation."""
    if isinstance(value, str) and _ASCII_NAMESPACE(value):
        return value
    text = _check_word(value, field, MAX_NAMESPACE_BYTES)
    if _KEY_SYNTAX(text):
        raise InvalidInput(f"{field}: contains ':', '{{' or '}}'")
    return text


def check_worker_id(value: object, field: str = "worker_id") -> str:
    """The id of a worker pool or of one worker process."""
    return _check_word(value, field, MAX_WORKER_ID_BYTES)


def _check_word(value: object, field: str, max_bytes: int) -> str:
    text = check_text(value, field, max_bytes, allow_empty=False)
    if _SPACE_OR_CONTROL(text):
        raise InvalidInput(f"{field}: contains whitespace or control characters")
    return text


def check_text(
    value: object,
    field: str,
    max_bytes: int,
    *,
    allow_empty: bool = True,
    allow_control: bool = True,
) -> str:
    """Free text that fits a limit and that every store can hold."""
    if not isinstance(value, str):
        raise InvalidInput(f"{field}: {_not_text(value)}")
    if not value and not allow_empty:
        raise InvalidInput(f"{field}: empty")
    size = utf8_size(value)
    if size is None:
        raise InvalidInput(f"{field}: not encodable as UTF-8")
    if size > max_bytes:
        raise InvalidInput(f"{field}: too long ({size} bytes, at most {max_bytes})")
    # A SQL text column cannot hold NUL, so no store accepts it.
    if "\0" in value or (not allow_control and _CONTROL(value)):
        raise InvalidInput(f"{field}: contains control characters")
    return value


def utf8_size(text: str) -> int | None:
    """How many bytes the text takes, or None when a lone surrogate makes it unencodable."""
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return None


def _not_text(value: object) -> str:
    return f"expected a string, got {type(value).__name__}"


def limit_id(namespace: str, name: str) -> str:
    """The id of a budget or quota that goes by a name in its namespace; an id is itself."""
    try:
        return str(UUID(name))
    except ValueError:
        return str(uuid5(NAMESPACE_URL, f"{namespace}:{name}"))
