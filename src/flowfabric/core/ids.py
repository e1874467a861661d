"""Identifiers, and the partition of the store that each belongs to: read strictly at the edge,
taken apart cheaply inside.

Checks accept anything and answer with the value or `InvalidInput`, which names the field and the
reason but never repeats the value: it may be long, hostile or secret.
"""

import re
from binascii import crc_hqx
from collections.abc import Callable
from typing import Final, Literal, NewType, cast
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec

from flowfabric.errors import InvalidInput

Family = Literal["flow", "budget", "quota"]

MAX_INDEX: Final = 0xFFFF

_TAGS: Final[dict[Family, str]] = {"flow": "fp", "budget": "b", "quota": "q"}
_FAMILIES: Final = {tag: family for family, tag in _TAGS.items()}

_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,4}").fullmatch

# Of CRC-16/XMODEM, with its highest bit.
_POLYNOMIAL: Final = 0x11021

_FNV_BASIS: Final = 0xCBF29CE484222325
_FNV_PRIME: Final = 0x100000001B3
_U64: Final = 0xFFFFFFFFFFFFFFFF
_U32: Final = 0xFFFFFFFF


def crc16(data: bytes) -> int:
    """CRC-16/XMODEM, the checksum by which a Valkey cluster assigns slots."""
    return crc_hqx(data, 0)


def crc16_of_uuid(uuid: str) -> int:
    """The checksum of a canonical UUID's sixteen bytes."""
    return crc_hqx(bytes.fromhex(uuid.replace("-", "")), 0)


def _last_bits_for(difference: int) -> int:
    """The change of a message's last sixteen bits that makes this difference to its checksum: as
    many steps of the checksum, taken back."""
    for _ in range(16):
        difference = (difference ^ _POLYNOMIAL) >> 1 if difference & 1 else difference >> 1
    return difference


def parse_index(text: str) -> int | None:
    """A partition index in its only spelling: no sign, no leading zeros, sixteen bits."""
    if _INDEX(text) is None:
        return None
    index = int(text)
    return index if index <= MAX_INDEX else None


class PartitionCounts(msgspec.Struct, frozen=True):
    """How many partitions each family has; fixed for the life of a deployment."""

    flow: int = 256
    budget: int = 32
    quota: int = 32

    def __post_init__(self) -> None:
        for family in self.__struct_fields__:
            count = getattr(self, family)
            if type(count) is not int or not 0 < count <= MAX_INDEX:
                raise InvalidInput(f"num_{family}_partitions: expected 1 to {MAX_INDEX}")

    def of_flow(self, flow_id: str) -> int:
        """The partition of a flow and all its members."""
        return crc16_of_uuid(flow_id) % self.flow

    def flow_id_in(self, partition: int, uuid: str) -> str:
        """A UUID whose last two bytes are changed so that a flow of that id is in the partition."""
        checksum = crc16_of_uuid(uuid)
        wanted = checksum - checksum % self.flow + partition
        if wanted > MAX_INDEX:
            wanted -= self.flow
        return f"{uuid[:-4]}{int(uuid[-4:], 16) ^ _last_bits_for(checksum ^ wanted):04x}"

    def of_budget(self, budget_id: str) -> int:
        return crc16_of_uuid(budget_id) % self.budget

    def of_quota(self, quota_id: str) -> int:
        return crc16_of_uuid(quota_id) % self.quota

    def of_lane(self, lane: str, uuid: str, shards: int = 1) -> int:
        """The partition of a standalone execution; `shards` spreads a lane over several."""
        name = lane.encode()
        if shards > 1 and (shard := crc16_of_uuid(uuid) % shards):
            # Shard 0 keeps the bare name, so raising `shards` leaves it where the lane was.
            name += shard.to_bytes(2, "big")
        return crc_hqx(name, 0) % self.flow

    def of_key(self, namespace: str, key: str) -> int:
        """The partition of a standalone execution submitted with an idempotency key."""
        return crc16(f"{namespace}:{key}".encode()) % self.flow


class PartitionKey(msgspec.Struct, frozen=True):
    """A partition as clients see it: opaque text such as `{fp:7}`."""

    family: Family
    index: int

    def __str__(self) -> str:
        return f"{{{_TAGS[self.family]}:{self.index}}}"


def parse_partition_key(text: object) -> PartitionKey:
    """Read a partition key that came from outside."""
    if not isinstance(text, str):
        raise _bad_key("expected a string")
    if len(text) < 2 or text[0] != "{" or text[-1] != "}":
        raise _bad_key("missing braces")
    tag, colon, number = text[1:-1].partition(":")
    if not colon:
        raise _bad_key("malformed body, expected prefix:index")
    family = _FAMILIES.get(tag)
    if family is None:
        raise _bad_key("unknown prefix, expected fp, b or q")
    index = parse_index(number)
    if index is None:
        raise _bad_key(f"invalid index, expected 0 to {MAX_INDEX}")
    return PartitionKey(family, index)


def _bad_key(reason: str) -> InvalidInput:
    return InvalidInput(f"partition_key: {reason}")


def fnv1a(text: str) -> int:
    """FNV-1a, 64 bits: for jitter and log digests, never for anything that must resist malice."""
    value = _FNV_BASIS
    for byte in text.encode():
        value = ((value ^ byte) * _FNV_PRIME) & _U64
    return value


def xor8hex(text: str) -> str:
    """Both halves of the hash folded into eight hex digits."""
    value = fnv1a(text)
    return f"{(value & _U32) ^ (value >> 32):08x}"


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


def parse_execution_id(
    text: object, counts: PartitionCounts | None = None, field: str = "execution_id"
) -> ExecutionId:
    """The id in its one canonical spelling; with `counts` also that its partition exists."""
    limit = MAX_INDEX + 1 if counts is None else counts.flow
    if isinstance(text, str) and (match := _EXECUTION_ID(text)) and int(match[1]) < limit:
        return ExecutionId(text)
    raise InvalidInput(f"{field}: {_why_no_execution_id(text)}")


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


# The id of a UUID in a partition.
compose: Final = cast(Callable[[int, str], ExecutionId], "{{fp:{}}}:{}".format)


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


MAX_KIND_BYTES: Final = 1024


def check_kind(value: object, field: str = "kind") -> str:
    """The kind of a task, which other programs submit by it."""
    return check_text(value, field, MAX_KIND_BYTES, allow_empty=False)


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
