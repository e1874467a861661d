"""What a decoder found wrong with a document, in plain words: the path first, then the reason."""

import re
from typing import Final

_FIELD: Final = re.compile(r"Object (contains unknown|missing required) field `(.*)`").fullmatch
_REASONS: Final = {"contains unknown": "unknown member", "missing required": "missing"}


def path_of(message: str) -> str:
    """Where msgspec's message points: `a.b[0]` of "… - at `$.a.b[0]`", "" for the whole."""
    _, found, path = message.rpartition(" - at `$")
    return path.rstrip("`").lstrip(".") if found else ""


def path_and_reason(message: str, whole: str) -> str:
    """msgspec's "Expected `int`, got `str` - at `$.a.b`" as "a.b: expected int, got str"; `whole`
    names the document itself."""
    path = path_of(message)
    reason = message.rpartition(" - at `$")[0] or message
    if field := _FIELD(reason):
        inside = f"{path}.{field[2]}" if path else field[2]
        return f"{inside}: {_REASONS[field[1]]}"
    plain = reason.replace("`", "").replace(" | null", "")
    return f"{path or whole}: {plain[:1].lower()}{plain[1:]}"
