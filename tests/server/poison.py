"""Bodies that fit the document, and the same with one value that nobody can mean."""

from collections.abc import Iterator, Mapping
from typing import Any

from flowfabric.operations.types import EXECUTION_PATTERN, UUID_PATTERN
from flowfabric.server.openapi import document_of
from flowfabric.server.route import Route
from flowfabric.server.routes import ROUTES
from tests.server.samples import EXECUTION, UUID

_SCHEMAS = document_of(ROUTES)["components"]["schemas"]
_TEXTS = {EXECUTION_PATTERN: EXECUTION, UUID_PATTERN: UUID}

# JSON as text: some of it no library would write.
POISON = (
    "1" + "0" * 400,
    "-1" + "0" * 400,
    "9223372036854775808",
    "-9223372036854775809",
    "-1",
    "1e400",
    "0.1",
    '""',
    '"' + "x" * 50_000 + '"',
    '"\\u0000"',
    '"\\ud800"',
    '"\U0001f600\\u202e"',
    '"../../etc/passwd"',
    '"{fp:0}:00000000-0000-0000-0000-000000000000"',
    "[]",
    "[[[[]]]]",
    "{}",
    '{"":""}',
    "true",
    "null",
)


class Hole:
    """Where the poison goes."""


# What a member of this name must be for the body to come through to the engine.
_NAMED: dict[str, Any] = {
    "attempt_index": 0,
    "cancellation_policy": "cancel_all",
    "cron": None,
    "direction": "incoming",
    "encoding": "utf8",
    "enforcement_mode": "strict",
    "idempotency_key": "",
    "kind": "all_of",
    "lane": "default",
    "lane_id": "default",
    "lane_shards": 1,
    "lanes": ["default"],
    "mode": "durable",
    "n": 1,
    "namespace": "default",
    "new_secret_hex": "ab" * 32,
    "on_hard_limit": "reject",
    "on_satisfied": None,
    "on_soft_limit": "warn",
    "outcome": {"complete": {}},
    "overlap": "allow",
    "parent_id": None,
    "partition_id": None,
    "policy": {},
    "progress_pct": 10,
    "reason_code": "waiting_for_signal",
    "resume_condition": {"condition_type": "signal_set", "required_signal_names": ["go"]},
    "scope_type": "lane",
    "signal_match_mode": "any",
    "timeout_at": None,
    "timeout_behavior": "fail",
    "to": "y",
    "tz": "UTC",
    "wait_ms": 0,
    "waitpoints": [{"type": "fresh"}],
}


def body_of(route: Route, known: Mapping[str, Any]) -> dict[str, Any]:
    """A body with every member that its schema knows; ids are those of things there are."""
    assert route.body is not None
    known = {**known, **_OF_ROUTE.get(route.name, {})}
    schema = _SCHEMAS[route.body.__name__]
    body = {
        name: _named(name, one, known, 6)
        for name, one in schema["properties"].items()
        if name not in _LEFT_OUT.get(route.name, ())
    }
    return {name: one for name, one in body.items() if one is not None}


# Where a name means something else.
_OF_ROUTE: dict[str, dict[str, Any]] = {
    "append_journal": {"outcome": "", "digest": "00" * 32},
    "backfill_schedule": {"from": 0, "to": 1_000},
    "claim_granted": {"kind": "claim"},
}
_LEFT_OUT = {"put_schedule": ("cron",), "create_execution": ("flow_id",)}


def _named(name: str, schema: dict[str, Any], known: Mapping[str, Any], depth: int) -> Any:
    given = {**_NAMED, **known}
    return given[name] if name in given else _filled(schema, known, depth - 1)


def _filled(schema: dict[str, Any], known: Mapping[str, Any], depth: int) -> Any:
    if "$ref" in schema:
        return _filled(_SCHEMAS[schema["$ref"].rpartition("/")[2]], known, depth)
    if "anyOf" in schema:
        chosen = next(one for one in schema["anyOf"] if one != {"type": "null"})
        return _filled(chosen, known, depth)
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            members = schema.get("properties", {})
            made = {name: _named(name, one, known, depth) for name, one in members.items()}
            return {name: one for name, one in made.items() if one is not None and depth}
        case "array":
            return [_filled(schema.get("items", {}), known, depth - 1)] if depth else []
        case "integer":
            return max(1_000, schema.get("minimum", 0))
        case "boolean":
            return False
        case "string":
            return "" if "contentEncoding" in schema else _TEXTS.get(schema.get("pattern", ""), "x")
        case _:
            return None


def holes(value: Any) -> Iterator[Any]:
    """The value with each of its parts in turn replaced by a hole."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield {**value, name: Hole}
            for inner in holes(one):
                yield {**value, name: inner}
    elif isinstance(value, list):
        for at, one in enumerate(value):
            for inner in holes(one):
                yield [*value[:at], inner, *value[at + 1 :]]
