"""Loads the function library into a Valkey server: `python -m tests.lua_syntax`.

The server compiles the whole text, so a mistake in any Lua file, or in what Python renders into it,
is shown with its line.
"""

import re
import sys

from flowfabric.backend.valkey.library import library
from tests.valkey_server import ValkeyServer


def fault_of(server: ValkeyServer, text: str) -> str:
    """Why the server refuses the library, with the line it means; nothing if it does not."""
    answer = server.run("FUNCTION", "LOAD", "REPLACE", text).decode()
    if not answer.startswith("-"):
        return ""
    message = answer.removeprefix("-").strip()
    place = re.search(r"user_function:(\d+):", message)
    line = text.splitlines()[int(place[1]) - 1].strip() if place else ""
    return f"{message}\n    {line}".rstrip()


def main() -> None:
    server = ValkeyServer()
    for test_mode in (False, True):
        text, _ = library(test_mode=test_mode)
        if fault := fault_of(server, text):
            sys.exit(fault)


if __name__ == "__main__":
    main()
