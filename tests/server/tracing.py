"""Which functions of ours a request passes, and which of our classes hold what was sent with it.

A function counts once, where control first enters it; comprehensions belong to their function. What
only moves bytes (the connections of both sides) and what only observes (telemetry) is left out.
"""

import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import msgspec

import flowfabric

_SOURCE: Final = f"{Path(flowfabric.__file__).parent.as_posix()}/"
_LEFT_OUT: Final = (
    "telemetry/",
    "server/connection.py",
    "server/exchange.py",
    "server/parser.py",
    "backend/valkey/connection.py",
)
_COMPREHENSIONS: Final = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"})
# An object that holds so many of the values that were sent is a representation of them.
_ENOUGH: Final = 2


class Call(NamedTuple):
    """A function, by its file below the sources, and its name with the class."""

    file: str
    function: str


class Trace:
    """Use it around one request, with nothing else running on the event loop."""

    def __init__(self, *sent: str) -> None:
        """`sent` are texts that occur nowhere but in the request."""
        self._sent = sent
        self.calls: list[Call] = []
        # Those of them that another file has called.
        self.entries: set[Call] = set()
        self.representations: set[str] = set()

    def __enter__(self) -> "Trace":
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, given: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(_SOURCE):
            return
        if event == "call":
            self._entered(frame)
            return
        for value in (given, *frame.f_locals.values()):
            if isinstance(value, msgspec.Struct) and self._holds(value):
                self.representations.add(type(value).__name__)

    def _entered(self, frame: FrameType) -> None:
        call = _call_of(frame)
        is_counted = not call.file.startswith(_LEFT_OUT)
        if not is_counted or frame.f_code.co_name in _COMPREHENSIONS or call in self.calls:
            return
        self.calls.append(call)
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(_SOURCE):
            caller = caller.f_back
        if caller is None or _call_of(caller).file != call.file:
            self.entries.add(call)

    def _holds(self, value: msgspec.Struct) -> bool:
        texts = tuple(_texts(value))
        return sum(any(one in text for text in texts) for one in self._sent) >= _ENOUGH


def _call_of(frame: FrameType) -> Call:
    code = frame.f_code
    name = code.co_qualname.replace("<locals>.", "")
    return Call(code.co_filename.removeprefix(_SOURCE), name)


def _texts(value: msgspec.Struct) -> Iterator[str]:
    for one in msgspec.structs.astuple(value):
        if isinstance(one, str):
            yield one
        elif isinstance(one, bytes):
            yield one.decode("latin-1")


async def traced(send: Callable[[], Awaitable[object]], *sent: str, times: int) -> Trace:
    """What most of several equal requests pass: a duty may run beside one of them, or make it read
    something anew."""
    traces = [await _one(send, sent) for _ in range(times)]
    (usual, _), *_ = Counter(tuple(trace.calls) for trace in traces).most_common()
    return next(trace for trace in traces if tuple(trace.calls) == usual)


async def _one(send: Callable[[], Awaitable[object]], sent: tuple[str, ...]) -> Trace:
    with Trace(*sent) as trace:
        await send()
    return trace
