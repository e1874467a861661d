"""Arguments against a schema: what is told, and that no schema makes a check costly."""

from time import process_time
from typing import Any

import msgspec
import pytest

from flowfabric.core.json_schema import MOST_STEPS, JsonSchema


def told(schema: dict[str, Any], value: object) -> str | None:
    text = msgspec.json.encode(value)
    found = JsonSchema(schema, len(msgspec.json.encode(schema))).fault_of(value, len(text))
    return None if found is None else str(found)


ADDRESS = {
    "type": "object",
    "properties": {"street": {"type": "string"}, "number": {"type": "integer", "minimum": 1}},
    "required": ["street"],
    "additionalProperties": False,
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 5},
        "home": {"anyOf": [{"$ref": "#/$defs/Address"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
        "pair": {"type": "array", "prefixItems": [{"type": "integer"}, {}], "items": False},
        "mood": {"enum": ["good", 1, True, None]},
        "ratio": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        "either": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
        "fixed": {"const": {"a": [1]}},
    },
    "required": ["name"],
    "additionalProperties": {"type": "boolean"},
    "$defs": {"Address": ADDRESS},
    "x-positional": ["name", "home"],
}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"name": "ada"}, None),
        ({"name": "ada", "home": None, "more": True, "mood": 1, "ratio": 0.5, "either": "x"}, None),
        ({"name": "ada", "home": {"street": "x", "number": 2.0}, "fixed": {"a": [1]}}, None),
        (["ada", {"street": "x"}], None),
        ({}, "input.name: it is missing"),
        ([], "input.name: it is missing"),
        (["a", None, 3], "input: expected at most 2, got 3"),
        ("ada", "input: expected object, got string"),
        ({"name": 1}, "input.name: expected string, got integer"),
        ({"name": True}, "input.name: expected string, got boolean"),
        ({"name": ""}, "input.name: expected at least 1 characters, got 0"),
        ({"name": "adaada"}, "input.name: expected at most 5 characters, got 6"),
        ({"name": "a", "more": 1}, "input.more: expected boolean, got integer"),
        ({"name": "a", "home": {}}, "input.home.street: it is missing"),
        (
            {"name": "a", "home": {"street": "x", "numbr": 2}},
            "input.home.numbr: there is no such argument; did you mean number?",
        ),
        (
            {"name": "a", "home": {"street": "x", "number": 0}},
            "input.home.number: expected at least 1, got 0",
        ),
        ({"name": "a", "home": 3}, "input.home: expected object, got integer"),
        ({"name": "a", "tags": ["x", 2]}, "input.tags[1]: expected string, got integer"),
        ({"name": "a", "tags": ["x"] * 3}, "input.tags: expected at most 2 items, got 3"),
        ({"name": "a", "pair": [1, 2, 3]}, "input.pair[2]: nothing may stand here"),
        ({"name": "a", "mood": "bad"}, "input.mood: expected one of 'good', 1, true, null, got"),
        ({"name": "a", "mood": False}, "input.mood: expected one of 'good', 1, true, null, got"),
        ({"name": "a", "ratio": 0}, "input.ratio: expected more than 0, got 0"),
        ({"name": "a", "ratio": 2}, "input.ratio: expected at most 1, got 2"),
        ({"name": "a", "either": 1.5}, "input.either: expected integer or string, got number"),
        ({"name": "a", "fixed": [1]}, "input.fixed: expected an object, got an array"),
    ],
)
def test_the_first_fault_is_told_with_its_place(value: object, expected: str | None) -> None:
    found = told(PERSON, value)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert found.startswith(expected)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 3, "properties": [], "required": "name", "items": 7, "enum": {}, "anyOf": {}},
        {"type": ["string", 3]},
        {"type": "whatever"},
        {"properties": {"name": 5}, "required": [1, None], "oneOf": [], "minimum": "x"},
        {"$ref": 3},
        {"$ref": "#/$defs/missing"},
        {"$ref": "https://example.org/schema"},
        {"$ref": "#/$defs/a", "$defs": []},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"pattern": "(a+)+$", "format": "email", "not": {}},
        {"x-positional": [None, {}], "minLength": None, "maxItems": []},
    ],
)
def test_a_keyword_of_the_wrong_form_counts_as_absent(schema: dict[str, Any]) -> None:
    for value in ({"name": "ada"}, [1], []):
        assert told(schema, value) is None


def test_a_reference_may_have_escapes() -> None:
    schema = {"$ref": "#/$defs/a~1b~0", "$defs": {"a/b~": {"type": "array"}}}
    assert told(schema, {}) == "input: expected array, got object"


def test_what_lies_too_deep_is_left_to_the_worker() -> None:
    schema = {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}},
    }
    value: Any = 1
    for _ in range(10):
        value = [value]
    assert told(schema, value) == "input" + "[0]" * 10 + ": expected array, got integer"
    for _ in range(100):
        value = [value]
    assert told(schema, value) is None


def _doubling() -> dict[str, Any]:
    """Each level of the value is looked at twice as often as the one above it."""
    twice = [{"items": {"$ref": "#/$defs/a"}}, {"items": {"$ref": "#/$defs/a"}, "maxItems": 0}]
    return {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [*twice[::-1], {"const": 0}]}}}


def _nested(depth: int) -> list[Any]:
    value: list[Any] = ["x"]
    for _ in range(depth):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (_doubling(), _nested(12)),
        ({"items": {"enum": ["x" * 60 + str(n) for n in range(800)]}}, ["x" * 60 + "1"] * 10_000),
        ({"anyOf": [{"items": {"type": "string"}}] * 2_000}, [1] * 100_000),
        ({"items": {"type": "integer"}}, [1] * 300_000),
        ({"additionalProperties": {}}, {str(n): n for n in range(100_000)}),
    ],
)
def test_no_schema_makes_a_check_costly(schema: dict[str, Any], value: object) -> None:
    checked = JsonSchema(schema, len(msgspec.json.encode(schema)))
    size = len(msgspec.json.encode(value))
    began = process_time()
    checked.fault_of(value, size)
    # Far above what so many steps take anywhere.
    assert process_time() - began < MOST_STEPS / 10_000


def test_a_small_input_has_few_steps() -> None:
    schema = {"anyOf": [{"type": "integer"}] * 50}
    assert told(schema, {}) == "input: expected " + " or ".join(["integer"] * 50) + ", got object"
    short = JsonSchema(schema, 10)
    assert short.fault_of({}, 2) is None
