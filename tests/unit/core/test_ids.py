"""Identifiers: one spelling each, and a reason for every refusal."""

from collections.abc import Callable
from functools import partial
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core import ids
from flowfabric.core.ids import PartitionCounts, crc16
from flowfabric.errors import InvalidInput

UUID_TEXT = "550e8400-e29b-41d4-a716-446655440000"
NIL = "00000000-0000-0000-0000-000000000000"
COUNTS = PartitionCounts()

NOT_TEXT: list[object] = [None, 7, 1.5, True, b"bytes", ["x"], {"x": 1}, UUID(UUID_TEXT)]

uuids = st.uuids().map(str)
partitions = st.integers(0, 65535)


@given(partitions, uuids)
def test_an_execution_id_survives_the_round_trip(partition: int, uuid: str) -> None:
    composed = ids.compose(partition, uuid)
    assert ids.parse_execution_id(composed) == composed
    assert ids.partition_of(composed) == partition
    assert ids.uuid_of(composed) == uuid


@given(st.text())
def test_any_text_is_an_execution_id_or_invalid_input(text: str) -> None:
    try:
        parsed = ids.parse_execution_id(text, COUNTS)
    except InvalidInput:
        return
    assert ids.compose(ids.partition_of(parsed), ids.uuid_of(parsed)) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "missing tag"),
        (UUID_TEXT, "missing tag"),
        (f"fp:7:{UUID_TEXT}", "missing tag"),
        (f"{{b:7}}:{UUID_TEXT}", "missing tag"),
        (f"{{FP:7}}:{UUID_TEXT}", "missing tag"),
        (f" {{fp:7}}:{UUID_TEXT}", "missing tag"),
        (f"{{fp:7}}{UUID_TEXT}", "missing tag"),
        ("{fp:7}", "missing tag"),
        (f"{{fp:}}:{UUID_TEXT}", "invalid partition index"),
        (f"{{fp:07}}:{UUID_TEXT}", "invalid partition index"),
        (f"{{fp:+7}}:{UUID_TEXT}", "invalid partition index"),
        (f"{{fp:-7}}:{UUID_TEXT}", "invalid partition index"),
        (f"{{fp: 7}}:{UUID_TEXT}", "invalid partition index"),
        (f"{{fp:x}}:{UUID_TEXT}", "invalid partition index"),
        (f"{{fp:٧}}:{UUID_TEXT}", "invalid partition index"),
        (f"{{fp:65536}}:{UUID_TEXT}", "invalid partition index"),
        (f"{{fp:999999999999}}:{UUID_TEXT}", "invalid partition index"),
        ("{fp:7}:", "invalid UUID suffix"),
        (f"{{fp:7}}:{UUID_TEXT.upper()}", "invalid UUID suffix"),
        (f"{{fp:7}}:{UUID_TEXT.replace('-', '')}", "invalid UUID suffix"),
        (f"{{fp:7}}:{UUID_TEXT}\n", "invalid UUID suffix"),
        (f"{{fp:7}}:{UUID_TEXT} ", "invalid UUID suffix"),
        (f"{{fp:7}}:{{{UUID_TEXT}}}", "invalid UUID suffix"),
        (f"{{fp:7}}:urn:uuid:{UUID_TEXT}", "invalid UUID suffix"),
        (f"{{fp:7}}:{UUID_TEXT[:-1]}g", "invalid UUID suffix"),
    ],
)
def test_another_spelling_of_an_execution_id_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=f"execution_id: {reason}"):
        ids.parse_execution_id(text)


@pytest.mark.parametrize("text", [f"{{fp:0}}:{NIL}", f"{{fp:65535}}:{UUID_TEXT}"])
def test_the_extreme_execution_ids_are_fine(text: str) -> None:
    assert ids.parse_execution_id(text) == text


def test_an_execution_id_must_lie_within_the_partitions_of_the_deployment() -> None:
    counts = PartitionCounts(flow=8)
    assert ids.parse_execution_id(f"{{fp:7}}:{NIL}", counts) == f"{{fp:7}}:{NIL}"
    with pytest.raises(InvalidInput, match="partition index out of range"):
        ids.parse_execution_id(f"{{fp:8}}:{NIL}", counts)


@pytest.mark.parametrize(
    "check",
    [
        ids.parse_execution_id,
        partial(ids.parse_uuid, field="flow_id"),
        ids.check_lane,
        ids.check_namespace,
        ids.check_worker_id,
        partial(ids.check_text, field="key", max_bytes=10),
    ],
)
@pytest.mark.parametrize("value", NOT_TEXT)
def test_what_is_not_text_is_invalid_input(check: Callable[[object], str], value: object) -> None:
    with pytest.raises(InvalidInput, match=r"\w+: expected a"):
        check(value)


def test_a_member_is_minted_where_its_flow_lives() -> None:
    flow_id = "11111111-2222-4333-8444-555555555555"
    assert ids.for_flow(COUNTS, flow_id, UUID_TEXT) == f"{{fp:101}}:{UUID_TEXT}"


def test_standalone_work_is_minted_where_its_lane_lives() -> None:
    assert ids.solo(COUNTS, "default", UUID_TEXT) == f"{{fp:86}}:{UUID_TEXT}"
    shard = crc16(UUID(UUID_TEXT).bytes) % 7
    assert shard == 5
    index = crc16(b"default\x00\x05") % 256
    assert ids.solo(COUNTS, "default", UUID_TEXT, 7) == f"{{fp:{index}}}:{UUID_TEXT}"


def test_keyed_work_is_minted_where_its_key_lives() -> None:
    index = crc16(b"default:order-7") % 256
    assert ids.keyed(COUNTS, "default", "order-7", UUID_TEXT) == f"{{fp:{index}}}:{UUID_TEXT}"


@given(uuids, st.integers(1, 65535), st.text(st.characters(codec="utf-8")))
def test_whatever_is_minted_parses(uuid: str, flow: int, key: str) -> None:
    counts = PartitionCounts(flow=flow)
    for minted in (
        ids.for_flow(counts, uuid, uuid),
        ids.solo(counts, "lane", uuid, 256),
        ids.keyed(counts, "default", key, uuid),
    ):
        assert ids.parse_execution_id(minted, counts) == minted


@given(uuids)
def test_a_canonical_uuid_is_accepted(uuid: str) -> None:
    assert ids.parse_uuid(uuid, "flow_id") == uuid


@pytest.mark.parametrize(
    "text",
    [
        "",
        UUID_TEXT.upper(),
        UUID_TEXT.replace("-", ""),
        f"{{{UUID_TEXT}}}",
        f"{UUID_TEXT}\n",
        UUID_TEXT[:-1],
        "550e8400e-29b-41d4-a716-446655440000",
    ],
)
def test_another_spelling_of_a_uuid_is_refused_naming_the_field(text: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        ids.parse_uuid(text, "budget_id")
    assert refusal.value.detail == "budget_id: expected a lower-case UUID with hyphens"


@pytest.mark.parametrize("lane", ["default", "a", "x" * 64, "two words", "!~", "{fp:1}", "a-b+c"])
def test_a_printable_lane_is_accepted(lane: str) -> None:
    assert ids.check_lane(lane) == lane


@pytest.mark.parametrize(
    ("lane", "reason"),
    [
        ("", "empty"),
        ("x" * 65, "too long (65 bytes, at most 64)"),
        ("a,b", "non-printable or ',' at byte 1"),
        ("ab\t", "non-printable or ',' at byte 2"),
        ("\x7f", "non-printable or ',' at byte 0"),
        ("laneé", "non-printable or ',' at byte 4"),
        ("a\n", "non-printable or ',' at byte 1"),
        ("\ud800", "non-printable or ',' at byte 0"),
    ],
)
def test_another_lane_is_refused_with_its_reason(lane: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        ids.check_lane(lane)
    assert refusal.value.detail == f"lane_id: {reason}"


@given(st.characters(max_codepoint=0x100))
def test_a_lane_of_one_character_follows_the_byte_rule(character: str) -> None:
    fine = 0x20 <= ord(character) <= 0x7E and character != ","
    try:
        ids.check_lane(character)
    except InvalidInput:
        assert not fine
    else:
        assert fine


@pytest.mark.parametrize(
    "namespace", ["default", "a/b", "größe", "日本", "x" * 128, "é" * 64, "~!|,"]
)
def test_a_namespace_may_be_any_word(namespace: str) -> None:
    assert ids.check_namespace(namespace) == namespace


@pytest.mark.parametrize(
    ("namespace", "reason"),
    [
        ("", "empty"),
        ("x" * 129, "too long (129 bytes, at most 128)"),
        ("é" * 65, "too long (130 bytes, at most 128)"),
        ("a b", "contains whitespace or control characters"),
        ("a\u2028b", "contains whitespace or control characters"),
        ("a\u00a0b", "contains whitespace or control characters"),
        ("a\x85b", "contains whitespace or control characters"),
        ("a\x7fb", "contains whitespace or control characters"),
        ("a\x00b", "contains control characters"),
        ("a:b", "contains ':', '{' or '}'"),
        ("a{b", "contains ':', '{' or '}'"),
        ("é}b", "contains ':', '{' or '}'"),
        ("\udc00", "not encodable as UTF-8"),
    ],
)
def test_another_namespace_is_refused_with_its_reason(namespace: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        ids.check_namespace(namespace)
    assert refusal.value.detail == f"namespace: {reason}"


@given(st.characters(max_codepoint=0x7F))
def test_both_paths_of_the_namespace_check_agree(character: str) -> None:
    # The second spelling cannot take the short cut for plain ASCII.
    assert accepts(character) == accepts(f"é{character}")


def accepts(namespace: str) -> bool:
    try:
        ids.check_namespace(namespace)
    except InvalidInput:
        return False
    return True


@pytest.mark.parametrize("worker", ["w", "host:8080/{1}", "wörker", "x" * 256])
def test_a_worker_id_may_be_any_word(worker: str) -> None:
    assert ids.check_worker_id(worker) == worker


@pytest.mark.parametrize(
    ("worker", "reason"),
    [
        ("", "empty"),
        ("x" * 257, "too long (257 bytes, at most 256)"),
        ("a b", "contains whitespace or control characters"),
        ("a\n", "contains whitespace or control characters"),
        ("\x1b[0m", "contains whitespace or control characters"),
    ],
)
def test_another_worker_id_is_refused_naming_its_field(worker: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        ids.check_worker_id(worker, "worker_instance_id")
    assert refusal.value.detail == f"worker_instance_id: {reason}"


@pytest.mark.parametrize("text", ["", "key", "two\nlines", "é" * 5])
def test_text_within_its_limit_is_accepted(text: str) -> None:
    assert ids.check_text(text, "idempotency_key", 10) == text


def test_text_is_measured_in_bytes() -> None:
    with pytest.raises(InvalidInput, match=r"too long \(11 bytes, at most 10\)"):
        ids.check_text("éééééx", "idempotency_key", 10)


def test_text_may_have_to_be_present_and_plain() -> None:
    with pytest.raises(InvalidInput, match="reason: empty"):
        ids.check_text("", "reason", 10, allow_empty=False)
    for text in ("a\tb", "a\x9fb", "\x7f"):
        with pytest.raises(InvalidInput, match="reason: contains control characters"):
            ids.check_text(text, "reason", 10, allow_control=False)


@pytest.mark.parametrize(("text", "reason"), [("a\0", "control"), ("\ud800", "UTF-8")])
def test_text_no_store_could_hold_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        ids.check_text(text, "idempotency_key", 10)


@given(st.text())
def test_the_size_of_text_is_the_size_of_its_bytes(text: str) -> None:
    assert ids.utf8_size(text) == len(text.encode())
