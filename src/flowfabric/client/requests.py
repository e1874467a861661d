"""Requests as data, and the paths they go to."""

from typing import Any, Final, Literal
from urllib.parse import quote

import msgspec

# Above what the server allows itself, so that its own answer is seen.
TIMEOUT_S: Final = 130.0
# How much longer than the server waits its answer may take.
WAIT_MARGIN_S: Final = 15.0


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request. Of its query what is None or empty is left out.

    `is_safe`: a repeat changes nothing. Any other is put again only if it never left, or was
    refused before anything was done.
    """

    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    body: Any = None
    query: dict[str, Any] = {}
    is_safe: bool = True
    timeout_s: float = TIMEOUT_S

    # Bodies hold payloads, tokens and secrets.
    def __repr__(self) -> str:
        return f"Request({self.method} {self.path})"


def get(path: str, **query: Any) -> Request:
    return Request(method="GET", path=path, query=query)


def waiting(path: str, parameter: str, ms: int, **query: Any) -> Request:
    """A read that the server may answer so much later, as the parameter says."""
    given = {**query, parameter: ms or None}
    return Request(method="GET", path=path, query=given, timeout_s=ms / 1_000 + WAIT_MARGIN_S)


def segment(text: str) -> str:
    """A path segment; ids have braces and colons, names may have anything."""
    return quote(text, safe="")


def execution(execution_id: str, *rest: str) -> str:
    return "/".join(("/v1/executions", segment(execution_id), *rest))
