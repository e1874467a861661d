"""Merging patches: what each member does to the document, limits, and numbers to the last digit."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.merge_patch import (
    MAX_DOCUMENT_BYTES,
    merge,
    merge_all,
    read_document,
    read_patch,
    size_fault,
    write_document,
)
from flowfabric.errors import Corruption, InvalidInput, RetentionLimitExceeded
from tests.merging import patched, patches


def merged(*texts: str) -> str:
    return write_document(merge_all({}, (read_patch(text.encode()) for text in texts))).decode()


def nested(levels: int, innermost: str = "{}", member: str = '{"a":%s}') -> str:
    text = innermost
    for _ in range(levels):
        text = member % text
    return text


@pytest.mark.parametrize(
    ("texts", "document"),
    [
        (["{}"], "{}"),
        (['{"a":1,"b":{"c":2}}', '{"a":null,"b":{"d":3}}'], '{"b":{"c":2,"d":3}}'),
        (['{"a":1}', '{"b":null}'], '{"a":1}'),
        (['{"a":{"b":null}}'], '{"a":{}}'),
        (['{"a":1}', '{"a":{}}'], '{"a":{}}'),
        (['{"a":{"b":1}}', '{"a":{}}'], '{"a":{"b":1}}'),
        (['{"a":[1]}', '{"a":{"b":{"c":null}}}'], '{"a":{"b":{}}}'),
        (['{"a":{"b":1}}', '{"a":"text"}'], '{"a":"text"}'),
        (['{"a":[1,{"b":2}]}', '{"a":[{"c":3}]}'], '{"a":[{"c":3}]}'),
        (['{"a":[1]}', '{"a":[]}'], '{"a":[]}'),
        (['{"a":[null,{"b":null}]}'], '{"a":[null,{"b":null}]}'),
        (['{"a":"__ff_null__"}'], '{"a":null}'),
        (['{"a":"__ff_null__"}', '{"a":null}'], "{}"),
        (['{"a":"__ff_null__"}', '{"a":{"b":1}}'], '{"a":{"b":1}}'),
        (['{"a":{"b":{"c":"__ff_null__"}}}'], '{"a":{"b":{"c":null}}}'),
        (['{"a":["__ff_null__",[{"b":"__ff_null__"}]]}'], '{"a":[null,[{"b":null}]]}'),
        (['{"__ff_null__":1}'], '{"__ff_null__":1}'),
        (['{"a":[{"__ff_null__":"__ff_null__"}]}'], '{"a":[{"__ff_null__":null}]}'),
        (['{"a":" __ff_null__","b":"__FF_NULL__"}'], '{"a":" __ff_null__","b":"__FF_NULL__"}'),
        (['{"":{"":1}}', '{"":{"":null}}'], '{"":{}}'),
        (['{"a":1,"a":2}'], '{"a":2}'),
        (['{"a":true,"b":false}', '{"b":true}'], '{"a":true,"b":true}'),
        ([' {"a" : "\\u00e9\\ud83d\\ude00"} '], '{"a":"é😀"}'),
    ],
)
def test_a_member_deletes_merges_or_replaces(texts: list[str], document: str) -> None:
    assert merged(*texts) == document


@pytest.mark.parametrize(
    "number",
    [
        "1152921504606846977",
        "-9223372036854775809",
        "340282366920938463463374607431768211457",
        "9" * 5_000,
        "0.1000000000000000055511151231257827021181583404541015625",
        "1.7976931348623157e+308",
        "1e400",
        "-1E-99999999999999999999",
        "-0.0",
        "100000000000000000000.5",
    ],
)
def test_numbers_survive_to_the_last_digit(number: str) -> None:
    text = merged(f'{{"a":{number},"b":[{number}]}}', '{"c":1}')
    again = write_document(merge(read_document(text.encode()), {})).decode()
    assert again == text == f'{{"a":{number},"b":[{number}],"c":1}}'


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b" ",
        b"{",
        b"{}x",
        b"{'a':1}",
        b'{"a":01}',
        b'{"a":1.}',
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"a":undefined}',
        b'{"a":"\xff"}',
        b'{"a":"\\ud800"}',
        b'{"\\udc00":1}',
        b'{"a":"\n"}',
        b"\xef\xbb\xbf{}",
        '{"a":1}'.encode("utf-16"),
        b"\x00",
    ],
)
def test_what_is_no_json_is_no_patch(payload: bytes) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_patch(payload)
    assert caught.value.detail == "patch payload is not valid JSON"


@pytest.mark.parametrize("payload", [b"[]", b"[{}]", b"1", b'"text"', b"null", b"true"])
def test_the_root_is_an_object(payload: bytes) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_patch(payload)
    assert caught.value.detail == "patch must be a JSON object"


@pytest.mark.parametrize(
    "text", [nested(17), nested(18, "null"), f'{{"a":[{nested(16)}]}}', nested(10_000)]
)
def test_objects_nest_sixteen_deep_below_the_root(text: str) -> None:
    assert read_patch(nested(17, "null").encode())
    with pytest.raises(InvalidInput) as caught:
        read_patch(text.encode())
    assert caught.value.detail == "patch_depth_exceeded"


def test_objects_and_arrays_nest_thirty_two_deep_with_the_root() -> None:
    assert merged(nested(16)) == nested(16)
    deepest = nested(31, "1", "[%s]")
    assert merged(f'{{"a":{deepest}}}') == f'{{"a":{deepest}}}'
    for text in (f'{{"a":[{deepest}]}}', nested(16, nested(17, "1", "[%s]"))):
        with pytest.raises(RetentionLimitExceeded):
            read_patch(text.encode())


def test_a_document_has_256_kib_and_not_a_byte_more() -> None:
    assert size_fault(b"x" * MAX_DOCUMENT_BYTES) is None
    assert isinstance(size_fault(b"x" * (MAX_DOCUMENT_BYTES + 1)), RetentionLimitExceeded)


@pytest.mark.parametrize("stored", [b"", b"\xff", b"[1]", b"null", b'{"a":'])
def test_a_stored_document_that_cannot_be_read_is_corrupt(stored: bytes) -> None:
    with pytest.raises(Corruption):
        read_document(stored)


def test_the_document_before_stays_as_it_was() -> None:
    before = read_document(b'{"a":{"b":[1]},"c":{}}')
    kept = copy.copy(before), copy.copy(before["a"])
    merge(before, read_patch(b'{"a":{"b":null,"d":{}},"c":{"e":"x"}}'))
    assert (before, before["a"], before["c"]) == (*kept, {})


@given(st.lists(patches, min_size=1, max_size=5))
def test_patches_do_what_their_definition_says(given_patches: list[dict[str, Any]]) -> None:
    document: dict[str, Any] = {}
    expected: Any = {}
    for patch in given_patches:
        document = merge(document, read_patch(json.dumps(patch).encode()))
        expected = patched(expected, patch)
        assert json.loads(write_document(document)) == expected
        document = read_document(write_document(document))
