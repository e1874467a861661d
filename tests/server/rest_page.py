"""The reference page of the routes, written from their declarations.

`make pages` writes it anew; a test compares.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from flowfabric.operations.types import EXECUTION_PATTERN, UUID_PATTERN
from flowfabric.server.openapi import document_of
from flowfabric.server.route import Route
from flowfabric.server.routes import ROUTES

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "rest.md"
MARK: Final = "<!-- written from the declarations of the routes from here on -->\n"
_PATTERNS: Final = {EXECUTION_PATTERN: "execution id", UUID_PATTERN: "UUID"}
# What any route may answer, told once at the top of the page.
_EVERYWHERE: Final = ("401", "403", "413", "415", "422", "503", "504")
_COMMON: Final = {"invalid_input", "invalid_json", "resource_exhausted"}


def page_text() -> str:
    """The page as it should be: what people wrote, then what follows from the routes."""
    written, mark, _ = PAGE.read_text().partition(MARK)
    assert mark, f"{PAGE} has lost its mark"
    return written + mark + "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    document = document_of(ROUTES)
    nouns: dict[str, list[Route]] = {}
    for route in ROUTES:
        nouns.setdefault(_noun(route), []).append(route)
    for noun, routes in nouns.items():
        yield from ("", f"## {noun.capitalize()}")
        for route in routes:
            operation = document["paths"][route.path][route.method.lower()]
            yield from _route(route, operation, document["components"]["schemas"])
    yield from ("", "## Shapes", "", "| name | members |", "|---|---|")
    for name, schema in sorted(document["components"]["schemas"].items()):
        if not _is_body(name):
            yield f"| `{name}` | {_members(schema)} |"


def _noun(route: Route) -> str:
    first = route.path.removeprefix("/v1/").partition("/")[0].partition(":")[0]
    return first.lstrip("/") if route.path.startswith("/v1/") else "service"


def _is_body(name: str) -> bool:
    return any(route.body is not None and route.body.__name__ == name for route in ROUTES)


def _route(route: Route, operation: dict[str, Any], schemas: dict[str, Any]) -> Iterator[str]:
    yield from ("", f"### `{route.method} {route.path}`", "", operation["summary"], "")
    yield f"- scope: {scope_text(route)}"
    queries = [one for one in operation["parameters"] if one["in"] == "query"]
    if queries:
        yield f"- query: {', '.join(_query(one) for one in queries)}"
    for status, answer in operation["responses"].items():
        if status.startswith("2"):
            yield f"- {status}: {_answer(answer)}"
    for status, answer in operation["responses"].items():
        codes = [code for code in answer["description"].split(", ") if code not in _COMMON]
        if not status.startswith("2") and status not in _EVERYWHERE and codes:
            yield f"- {status}: {', '.join(f'`{code}`' for code in codes)}"
    if route.body is not None:
        yield from _body(route, schemas)


def scope_text(route: Route) -> str:
    if route.scopes is None:
        return "none, open to everybody"
    return " or ".join(f"`{one}`" for one in sorted(route.scopes)) or "any token"


def _query(parameter: dict[str, Any]) -> str:
    schema = parameter["schema"]
    default = schema.get("default")
    shown = f" = `{json.dumps(default)}`" if default not in (None, "", [], ()) else ""
    return f"`{parameter['name']}` {_kind(schema)}{shown}"


def _answer(answer: dict[str, Any]) -> str:
    ((media, content),) = answer.get("content", {"": {}}).items() or [("", {})]
    if "schema" in content:
        return _kind(content["schema"])
    return f"`{media}`" if media else "nothing"


def _body(route: Route, schemas: dict[str, Any]) -> Iterator[str]:
    assert route.body is not None
    name = route.body.__name__
    schema = next(one for key, one in schemas.items() if key.rpartition(".")[2] == name)
    members = {key: one for key, one in schema.get("properties", {}).items() if key != "now"}
    size = f"at most {route.limit // 1024} KiB"
    if not members:
        yield f"- body: none needed ({size})"
        return
    yield from (f"- body ({size}):", "", "| member | type | default |", "|---|---|---|")
    required = schema.get("required", ())
    for key, one in members.items():
        default = "required" if key in required else _default(one)
        yield f"| `{key}` | {_kind(one)} | {default} |"


def _default(schema: dict[str, Any]) -> str:
    for one in (schema, *schema.get("anyOf", ())):
        if one.get("default") is not None:
            return f"`{json.dumps(one['default'])}`"
    return ""


def _members(schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    shown = [
        f"`{name}{'' if name in required else '?'}` {_kind(one)}"
        for name, one in schema.get("properties", {}).items()
        if name != "now"
    ]
    return ", ".join(shown) or _kind(schema)


def _kind(schema: dict[str, Any]) -> str:
    """A type in a word or two."""
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "anyOf" in schema:
        kinds = [_kind(one) for one in schema["anyOf"] if one != {"type": "null"}]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(one)}`" for one in schema["enum"])
    if schema.get("contentEncoding") == "base64":
        return "bytes"
    return _plain(schema)


def _plain(schema: dict[str, Any]) -> str:
    match schema.get("type"):
        case "array":
            items = schema.get("items")
            return f"list of {_kind(items)}" if isinstance(items, dict) and items else "list"
        case "object":
            value = schema.get("additionalProperties")
            return f"map to {_kind(value)}" if isinstance(value, dict) and value else "object"
        case str(kind):
            return _PATTERNS.get(schema.get("pattern", ""), kind)
        case _:
            return "any"


if __name__ == "__main__":
    PAGE.write_text(page_text())
