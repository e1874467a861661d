"""Which partition an id belongs to, and the hashes behind it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.partitions import (
    Family,
    PartitionCounts,
    PartitionKey,
    crc16,
    crc16_of_uuid,
    fnv1a,
    fnv1a_u16_mod,
    parse_index,
    parse_partition_key,
    xor8hex,
)
from flowfabric.errors import InvalidInput

NIL = "00000000-0000-0000-0000-000000000000"
ONES = "11111111-2222-4333-8444-555555555555"
COUNTS = PartitionCounts()


def test_the_checksum_is_the_one_of_valkey_clusters() -> None:
    assert crc16(b"123456789") == 0x31C3
    assert crc16(b"") == 0


@pytest.mark.parametrize(
    ("lane", "checksum", "partition"),
    [
        ("default", 0xD656, 86),
        ("hot", 0x17CD, 205),
        ("lane-2", 0x0ACE, 206),
        ("gpu", 0x3890, 144),
    ],
)
def test_a_lane_has_the_partition_of_its_name(lane: str, checksum: int, partition: int) -> None:
    assert crc16(lane.encode()) == checksum
    assert COUNTS.of_lane(lane, ONES) == partition


@pytest.mark.parametrize(
    ("uuid", "checksum", "of_256", "of_32"),
    [
        (NIL, 0x0000, 0, 0),
        (ONES, 0x9165, 101, 5),
        ("550e8400-e29b-41d4-a716-446655440000", 0x9018, 24, 24),
    ],
)
def test_a_uuid_is_hashed_by_its_bytes(uuid: str, checksum: int, of_256: int, of_32: int) -> None:
    assert crc16_of_uuid(uuid) == checksum
    assert COUNTS.of_flow(uuid) == of_256
    assert COUNTS.of_budget(uuid) == of_32
    assert COUNTS.of_quota(uuid) == of_32


def test_each_family_has_its_own_count() -> None:
    counts = PartitionCounts(flow=10, budget=7, quota=3)
    assert counts.of_flow(ONES) == 0x9165 % 10
    assert counts.of_budget(ONES) == 0x9165 % 7
    assert counts.of_quota(ONES) == 0x9165 % 3


def test_a_key_is_hashed_with_its_namespace() -> None:
    assert COUNTS.of_key("default", "order-7") == crc16(b"default:order-7") % 256
    assert COUNTS.of_key("größe", "ключ") == crc16("größe:ключ".encode()) % 256


def test_shards_spread_a_lane_and_shard_zero_stays_where_the_lane_was() -> None:
    assert 0x9165 % 4 == 1
    assert COUNTS.of_lane("gpu", ONES, 4) == crc16(b"gpu\x00\x01") % 256
    assert 0x9165 % 7 == 2
    assert COUNTS.of_lane("gpu", ONES, 7) == crc16(b"gpu\x00\x02") % 256
    assert COUNTS.of_lane("gpu", NIL, 256) == COUNTS.of_lane("gpu", NIL)


@pytest.mark.parametrize("family", ["flow", "budget", "quota"])
@pytest.mark.parametrize("count", [0, -1, 65536, True, 1.0, "8", None])
def test_counts_outside_sixteen_bits_are_refused(family: str, count: object) -> None:
    with pytest.raises(InvalidInput, match=f"num_{family}_partitions"):
        PartitionCounts(**{family: count})  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, 65535])
def test_the_extreme_counts_are_fine(count: int) -> None:
    assert PartitionCounts(flow=count, budget=count, quota=count).of_flow(ONES) < count


def test_counts_read_from_a_document_are_checked_too() -> None:
    assert msgspec.json.decode(b'{"flow":8}', type=PartitionCounts) == PartitionCounts(flow=8)
    with pytest.raises(InvalidInput):
        msgspec.json.decode(b'{"flow":0}', type=PartitionCounts)


@pytest.mark.parametrize(
    ("text", "family", "index"),
    [
        ("{fp:7}", "flow", 7),
        ("{fp:0}", "flow", 0),
        ("{fp:65535}", "flow", 65535),
        ("{b:31}", "budget", 31),
        ("{q:2}", "quota", 2),
    ],
)
def test_a_partition_key_reads_as_it_is_written(text: str, family: Family, index: int) -> None:
    key = parse_partition_key(text)
    assert key == PartitionKey(family, index)
    assert str(key) == text


@given(st.sampled_from(["flow", "budget", "quota"]), st.integers(0, 65535))
def test_partition_keys_survive_the_round_trip(family: Family, index: int) -> None:
    key = PartitionKey(family, index)
    assert parse_partition_key(str(key)) == key


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "missing braces"),
        ("{", "missing braces"),
        ("fp:7", "missing braces"),
        ("{fp:7", "missing braces"),
        ("fp:7}", "missing braces"),
        (" {fp:7}", "missing braces"),
        ("{}", "malformed body"),
        ("{fp7}", "malformed body"),
        ("{x:7}", "unknown prefix"),
        ("{:7}", "unknown prefix"),
        ("{FP:7}", "unknown prefix"),
        ("{fp:}", "invalid index"),
        ("{fp:65536}", "invalid index"),
        ("{fp:-1}", "invalid index"),
        ("{fp:+1}", "invalid index"),
        ("{fp:07}", "invalid index"),
        ("{fp: 7}", "invalid index"),
        ("{fp:1_0}", "invalid index"),
        ("{fp:7:8}", "invalid index"),
        ("{fp:٣}", "invalid index"),
        (7, "expected a string"),
        (None, "expected a string"),
    ],
)
def test_a_broken_partition_key_is_refused_with_its_reason(text: object, reason: str) -> None:
    with pytest.raises(InvalidInput, match=f"partition_key: {reason}"):
        parse_partition_key(text)


@pytest.mark.parametrize(
    ("text", "index"), [("0", 0), ("65535", 65535), ("65536", None), ("", None)]
)
def test_an_index_is_sixteen_bits_in_one_spelling(text: str, index: int | None) -> None:
    assert parse_index(text) == index


def test_the_fast_hash_matches_its_vectors() -> None:
    assert fnv1a("") == 0xCBF29CE484222325
    assert fnv1a("gpu,cuda") == 0x32511BB2804B7648
    assert xor8hex("gpu,cuda") == "b21a6dfa"
    assert fnv1a_u16_mod("worker-a", 256) == 253


def test_the_fast_hash_modulo_nothing_is_zero() -> None:
    assert fnv1a_u16_mod("worker-a", 0) == 0


@given(st.text(), st.integers(1, 70000))
def test_the_fast_hash_stays_in_range(text: str, modulus: int) -> None:
    assert 0 <= fnv1a(text) < 2**64
    assert 0 <= fnv1a_u16_mod(text, modulus) < min(modulus, 2**16)
    assert len(xor8hex(text)) == 8


@given(st.uuids(version=4).map(str), st.integers(1, 0xFFFF), st.data())
def test_an_id_is_moved_into_a_partition_by_its_last_two_bytes(
    uuid: str, count: int, data: st.DataObject
) -> None:
    counts = PartitionCounts(flow=count)
    partition = data.draw(st.integers(0, count - 1))
    moved = counts.flow_id_in(partition, uuid)
    assert counts.of_flow(moved) == partition
    assert (moved[:-4], len(moved)) == (uuid[:-4], len(uuid))
    assert counts.flow_id_in(partition, moved) == moved
