"""Signals that end a process, heard by whoever has something to finish first."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_ENDS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def hearing(callback: Callable[[], object]) -> Iterator[None]:
    """Call it at every such signal for the length of the block."""
    loop = asyncio.get_running_loop()
    heard: list[signal.Signals] = []
    for number in _ENDS:
        try:
            loop.add_signal_handler(number, callback)
        except (NotImplementedError, RuntimeError, ValueError):
            # Only the main thread of a process hears signals; others are stopped by a call.
            break
        heard.append(number)
    try:
        yield
    finally:
        for number in heard:
            loop.remove_signal_handler(number)
