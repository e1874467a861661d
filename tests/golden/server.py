"""A rendering of the function library that shows its inner functions, on a real server."""

import socket
from functools import cache
from importlib.resources import files
from typing import Any, Final

import libvalkey

from flowfabric.backend.valkey.library import FILES, NAME, blocks_with, library
from flowfabric.backend.valkey.packing import decode, encode
from flowfabric.backend.valkey.rendering import render
from tests.golden.mirrors import exports
from tests.valkey_server import shared_server

# A library of its own, so that it stands beside the one a store loads.
_PREFIX: Final = ("'ff1_'", "'golden_'")
_AT_ONCE: Final = 500

# A probe, the instant it is called at, and its arguments.
Ask = tuple[str, int, list[Any]]


def probing_library() -> str:
    added = exports()
    first, last = FILES[1], FILES[-1]
    probes = files(__package__).joinpath("probes.lua").read_text()
    added[first] = "\n".join(("ff.probed = {}", added.get(first, "")))
    added["spend"] += "\nff.probed['spend.acts.reset'] = acts.reset"
    added[last] = "\n".join((added.get(last, ""), render(probes)))
    text, _ = library(test_mode=True)
    head = text.removesuffix("\n".join(blocks_with({})))
    whole = head + "\n".join(blocks_with(added))
    return whole.replace(f"name={NAME}", f"name={NAME}_golden").replace(*_PREFIX)


class Probes:
    """Calls probes, many at once."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._reader = libvalkey.Reader()

    def close(self) -> None:
        self._socket.close()

    def run(self, *words: str | bytes) -> Any:
        self._socket.sendall(libvalkey.pack_command(words))
        while (answer := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(1 << 20))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ask(self, asks: list[Ask]) -> list[Any]:
        """What each came to; a probe that failed is an error."""
        answers: list[Any] = []
        for start in range(0, len(asks), _AT_ONCE):
            some = asks[start : start + _AT_ONCE]
            # In one array the functions read everything; no instant of its own.
            packed = encode((0, False, some))
            found = decode(self.run("FCALL", "golden_probe", "1", "ff:p:{fp:0}", packed))
            for ask, (is_done, answer) in zip(some, found, strict=True):
                if not is_done:
                    raise AssertionError(f"{ask[0]}: {answer}")
                answers.append(answer)
        return answers


@cache
def probes() -> Probes:
    server = shared_server()
    opened = Probes(server.port)
    opened.run("FUNCTION", "LOAD", "REPLACE", probing_library())
    return opened
