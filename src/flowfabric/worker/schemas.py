"""JSON schemas of the arguments and the result of a task, from the annotations of its function."""

from inspect import Parameter
from typing import Any, Final

import msgspec

from flowfabric.core.json_schema import POSITIONAL
from flowfabric.errors import ConfigError
from flowfabric.worker.signatures import Signature

Schema = dict[str, Any]
_REFS: Final = "#/$defs/"
_BY_PLACE: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def arguments_schema(signature: Signature) -> Schema | None:
    """None when there is none: a task that takes bytes, or an annotation without a schema."""
    try:
        struct = signature.struct
    except ConfigError:
        # It is reported when the task is called.
        return None
    schema = None if struct is None else _schema_of(struct)
    kinds = [one.kind for one in signature.parameters]
    if schema is None or Parameter.VAR_POSITIONAL in kinds:
        return schema
    by_place = [one.name for one in signature.parameters if one.kind in _BY_PLACE]
    return {**schema, POSITIONAL: by_place}


def result_schema(signature: Signature) -> Schema | None:
    try:
        return _schema_of(signature.result_type)
    except ConfigError:
        return None


def _schema_of(kind: Any) -> Schema | None:
    try:
        (schema,), parts = msgspec.json.schema_components(
            [kind], schema_hook=_foreign, ref_template=_REFS + "{name}"
        )
    except (TypeError, ValueError, RecursionError):
        # A type that msgspec cannot read either.
        return None
    _widen(parts)
    _widen(schema)
    name = schema.get("$ref", "").removeprefix(_REFS)
    if name in parts and not _refers(parts, name):
        schema = parts.pop(name)
    return {**schema, "$defs": parts} if parts else schema


def _foreign(kind: type) -> Schema:
    """Types of other libraries decide themselves what they take, and take more than they write."""
    return {"title": kind.__name__}


def _widen(schema: Any) -> None:
    """What msgspec takes beside what its schema says: a decimal may be a number, and the tag of a
    struct may be left out where there is no choice."""
    if isinstance(schema, dict):
        if schema.get("format") == "decimal":
            schema["type"] = ["string", "number"]
        if "required" in schema:
            members = schema.get("properties", {})
            schema["required"] = [
                one for one in schema["required"] if len(members[one].get("enum", "??")) > 1
            ]
        for one in schema.values():
            _widen(one)
    elif isinstance(schema, list):
        for one in schema:
            _widen(one)


def _refers(schema: Any, name: str) -> bool:
    """Whether some part of the schema refers to this one."""
    if isinstance(schema, dict):
        return schema.get("$ref") == _REFS + name or any(
            _refers(one, name) for one in schema.values()
        )
    return isinstance(schema, list) and any(_refers(one, name) for one in schema)
