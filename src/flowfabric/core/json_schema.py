"""The part of JSON Schema that arguments are checked by.

A schema comes from a worker and is not trusted: only the keywords below count, one of the wrong
form counts as absent, and after so many steps, or so deep, everything passes. Whoever runs the work
checks its arguments again; this tells the caller sooner.
"""

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

# The names of the arguments that may also be given as a list, in order.
POSITIONAL: Final = "x-positional"
MOST_DEPTH: Final = 32
# Work is linear in what is checked, and bounded: a check holds up whoever waits for the process.
_STEPS_PER_BYTE: Final = 2
MOST_STEPS: Final = 20_000
_REFS: Final = "#/$defs/"
_MOST_PRINTED: Final = 80
# Names that a misspelt one is compared with.
_MOST_NEAR: Final = 100


class Fault(NamedTuple):
    """What is wrong, and where: `input.tags[2]`."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class JsonSchema:
    """A schema, to check arguments by."""

    def __init__(self, schema: Mapping[str, Any], size: int) -> None:
        """`size` is that of its text."""
        self._schema = dict(schema)
        self._size = size
        self._defs = _mapping(self._schema, "$defs")

    def fault_of(self, arguments: object, size: int) -> Fault | None:
        """What is wrong with arguments by name or, where the schema tells their order, in a list;
        `size` is that of their text."""
        names = self._schema.get(POSITIONAL)
        if isinstance(arguments, list) and isinstance(names, list):
            if len(arguments) > len(names):
                number = len(names)
                return Fault("input", f"expected at most {number}, got {len(arguments)}")
            arguments = {str(name): one for name, one in zip(names, arguments, strict=False)}
        elif isinstance(arguments, list) and self._schema.get("type") == "object":
            return None
        steps = min(_STEPS_PER_BYTE * (self._size + size), MOST_STEPS)
        return _Check(self._defs, steps).fault(self._schema, arguments, "input", 0)


class _Check:
    """One check, with so many steps left."""

    def __init__(self, defs: Mapping[str, Any], steps: int) -> None:
        self._defs = defs
        self._left = steps

    def fault(self, schema: object, value: object, path: str, depth: int) -> Fault | None:
        """The first thing that is wrong with a value."""
        self._left -= 1
        if self._left < 0 or depth > MOST_DEPTH:
            return None
        if schema is False:
            return Fault(path, "nothing may stand here")
        if not isinstance(schema, dict):
            return None
        faults = (
            find(schema, value, path, depth)
            for find in (self._of_ref, self._of_type, self._of_enum, self._of_any, self._of_one)
        )
        found = next((one for one in faults if one is not None), None)
        if found is not None:
            return found
        if isinstance(value, dict):
            return self._of_members(schema, value, path, depth)
        if isinstance(value, list):
            return self._of_items(schema, value, path, depth)
        return _of_bounds(schema, value, path)

    def _of_ref(self, schema: dict[str, Any], value: object, path: str, depth: int) -> Fault | None:
        ref = schema.get("$ref")
        if not isinstance(ref, str) or not ref.startswith(_REFS):
            return None
        name = ref.removeprefix(_REFS).replace("~1", "/").replace("~0", "~")
        return self.fault(self._defs.get(name), value, path, depth + 1)

    def _of_type(
        self, schema: dict[str, Any], value: object, path: str, depth: int
    ) -> Fault | None:
        wanted = schema.get("type")
        names = [wanted] if isinstance(wanted, str) else wanted
        if not isinstance(names, list):
            return None
        known = [one for one in names if isinstance(one, str) and one in _TYPES]
        if not known or len(known) < len(names) or any(_TYPES[one](value) for one in known):
            return None
        return Fault(path, f"expected {' or '.join(known)}, got {_type_of(value)}")

    def _of_enum(
        self, schema: dict[str, Any], value: object, path: str, depth: int
    ) -> Fault | None:
        choices = schema.get("enum")
        if not isinstance(choices, list):
            if "const" not in schema:
                return None
            choices = [schema["const"]]
        self._left -= len(choices)
        if any(_is_same(one, value) for one in choices):
            return None
        return Fault(path, f"expected {_listed(choices)}, got {_printed(value)}")

    def _of_any(self, schema: dict[str, Any], value: object, path: str, depth: int) -> Fault | None:
        """The fault of the alternative that comes nearest: it is wrong furthest inside."""
        choices = schema.get("anyOf")
        if not isinstance(choices, list) or not choices:
            return None
        nearest: Fault | None = None
        wanted: list[str] = []
        for one in choices:
            found = self.fault(one, value, path, depth + 1)
            # Out of steps everything fits.
            if found is None:
                return None
            wanted += _types_in(one)
            if nearest is None or len(found.path) > len(nearest.path):
                nearest = found
        assert nearest is not None
        if nearest.path == path and len(wanted) == len(choices):
            return Fault(path, f"expected {' or '.join(wanted)}, got {_type_of(value)}")
        return nearest

    def _of_one(self, schema: dict[str, Any], value: object, path: str, depth: int) -> Fault | None:
        choices = schema.get("oneOf")
        if not isinstance(choices, list) or not choices:
            return None
        fitting = sum(self.fault(one, value, path, depth + 1) is None for one in choices)
        if fitting == 1 or self._left < 0:
            return None
        if fitting:
            return Fault(path, f"{fitting} alternatives fit, expected one")
        return self._of_any({"anyOf": choices}, value, path, depth)

    def _of_members(
        self, schema: dict[str, Any], value: dict[str, Any], path: str, depth: int
    ) -> Fault | None:
        known, required = _mapping(schema, "properties"), schema.get("required")
        for name in required if isinstance(required, list) else ():
            if isinstance(name, str) and name not in value:
                return Fault(f"{path}.{_shortened(name)}", "it is missing")
        rest = schema.get("additionalProperties")
        for name, one in value.items():
            if self._left < 0:
                break
            place = f"{path}.{_shortened(name)}"
            if name not in known and rest is False:
                return Fault(place, f"there is no such argument{_meant(name, known)}")
            found = self.fault(known.get(name, rest), one, place, depth + 1)
            if found is not None:
                return found
        return _of_length(schema, "Properties", len(value), path, "members")

    def _of_items(
        self, schema: dict[str, Any], value: list[Any], path: str, depth: int
    ) -> Fault | None:
        fault = _of_length(schema, "Items", len(value), path, "items")
        if fault is not None:
            return fault
        first = schema.get("prefixItems")
        first = first if isinstance(first, list) else []
        rest = schema.get("items")
        for number, one in enumerate(value):
            kind = first[number] if number < len(first) else rest
            if kind is None or self._left < 0:
                break
            found = self.fault(kind, one, f"{path}[{number}]", depth + 1)
            if found is not None:
                return found
        return None


# ---- numbers and lengths

_BOUNDS: Final[tuple[tuple[str, Callable[[Any, Any], bool], str], ...]] = (
    ("minimum", lambda value, bound: value >= bound, "at least"),
    ("maximum", lambda value, bound: value <= bound, "at most"),
    ("exclusiveMinimum", lambda value, bound: value > bound, "more than"),
    ("exclusiveMaximum", lambda value, bound: value < bound, "less than"),
)


def _of_bounds(schema: dict[str, Any], value: object, path: str) -> Fault | None:
    if isinstance(value, str):
        return _of_length(schema, "Length", len(value), path, "characters")
    if not _is_number(value):
        return None
    for name, holds, words in _BOUNDS:
        bound = schema.get(name)
        if _is_number(bound) and not holds(value, bound):
            return Fault(path, f"expected {words} {bound}, got {_printed(value)}")
    return None


def _of_length(
    schema: dict[str, Any], what: str, length: int, path: str, unit: str
) -> Fault | None:
    least, most = schema.get(f"min{what}"), schema.get(f"max{what}")
    if isinstance(least, int | float) and length < least:
        return Fault(path, f"expected at least {least} {unit}, got {length}")
    if isinstance(most, int | float) and length > most:
        return Fault(path, f"expected at most {most} {unit}, got {length}")
    return None


# ---- types


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: Final[Mapping[str, Callable[[object], bool]]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "number": _is_number,
    "integer": lambda value: (
        (isinstance(value, int) and not isinstance(value, bool))
        or (isinstance(value, float) and value.is_integer())
    ),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}


def _type_of(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return "integer"
    return next(name for name, fits in _TYPES.items() if fits(value) and name != "integer")


def _types_in(schema: object) -> Iterator[str]:
    wanted = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(wanted, str):
        yield wanted


def _is_same(one: object, other: object) -> bool:
    """Equal as JSON: true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return one == other


def _mapping(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = schema.get(name)
    return found if isinstance(found, dict) else {}


# ---- words


def _meant(name: str, known: Mapping[str, Any]) -> str:
    names = [one for one in list(known)[:_MOST_NEAR] if len(one) <= _MOST_PRINTED]
    near = get_close_matches(name[:_MOST_PRINTED], names, 1)
    return f"; did you mean {near[0]}?" if near else ""


def _listed(choices: list[Any]) -> str:
    printed = [_printed(one) for one in choices[:8]]
    return ("one of " if len(choices) > 1 else "") + ", ".join(printed)


def _printed(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict | list):
        return f"an {_type_of(value)}"
    return _shortened(repr(value[: _MOST_PRINTED + 1] if isinstance(value, str) else value))


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_PRINTED else text[:_MOST_PRINTED] + "…"
