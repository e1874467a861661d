"""Which slot a key lies in, and that all keys of a partition share it."""

import pytest

from flowfabric.backend.valkey import keys
from flowfabric.core.partitions import crc16


@pytest.mark.parametrize(
    ("key", "slot"),
    [("123456789", 12739), ("foo", 12182), ("{foo}bar", 12182), ("a{foo}{bar}", 12182)],
)
def test_slots_are_those_of_the_server(key: str, slot: int) -> None:
    assert keys.slot_of(key) == slot


@pytest.mark.parametrize("key", ["{}bar", "{bar", "bar}", "}{"])
def test_without_a_whole_tag_the_whole_key_counts(key: str) -> None:
    assert keys.slot_of(key) == crc16(key.encode()) % keys.SLOTS


def test_a_partition_lies_in_one_slot() -> None:
    routed = keys.partition_key(7)
    assert keys.tag_of(routed) == "{fp:7}"
    assert keys.key_of("{fp:7}") == routed
    names = ("ff:x:{fp:7}:u", "ff:v:{fp:7}:claimable:-:default:{odd}", "ff:topic:{fp:7}")
    assert {keys.slot_of(name) for name in names} == {keys.slot_of(routed)}
