"""Partitions: which slot of the store an id belongs to, and the hashes that decide it."""

import re
from binascii import crc_hqx
from typing import Final, Literal

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
        """The partition of a budget."""
        return crc16_of_uuid(budget_id) % self.budget

    def of_quota(self, quota_id: str) -> int:
        """The partition of a quota policy."""
        return crc16_of_uuid(quota_id) % self.quota

    def of_lane(self, lane: str, uuid: str, shards: int = 1) -> int:
        """The partition of a standalone execution; `shards` spreads a lane over several."""
        name = lane.encode()
        if shards > 1 and (shard := crc16_of_uuid(uuid) % shards):
            # Shard 0 keeps the bare name, so raising `shards` leaves it where the lane was.
            name += shard.to_bytes(2, "big")
        return crc16(name) % self.flow

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


def fnv1a_u16_mod(text: str, modulus: int) -> int:
    """The low sixteen bits of the hash, modulo `modulus`; 0 when that is 0."""
    return (fnv1a(text) & MAX_INDEX) % modulus if modulus else 0


def xor8hex(text: str) -> str:
    """Both halves of the hash folded into eight hex digits."""
    value = fnv1a(text)
    return f"{(value & _U32) ^ (value >> 32):08x}"
