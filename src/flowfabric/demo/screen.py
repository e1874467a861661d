"""What the demo prints."""

import sys
import time
from collections.abc import Mapping
from typing import Final

from flowfabric.core.events import HistoryEntry

_COLOURS: Final = {
    "completed": 32,
    "failed": 31,
    "expired": 31,
    "cancelled": 33,
    "dim": 2,
    "bold": 1,
}


class Screen:
    """One line per event, with the seconds since the start and the execution's name."""

    def __init__(self, width: int) -> None:
        self._start = time.monotonic()
        self._width = width
        self._colours = sys.stdout.isatty()

    def title(self, text: str) -> None:
        print(f"\n{self.paint('bold', text)}")

    def line(self, name: str, text: str) -> None:
        seconds = self.paint("dim", f"{time.monotonic() - self._start:6.2f}s")
        print(f"{seconds}  {name:<{self._width}}  {text}", flush=True)

    def paint(self, colour: str, text: str) -> str:
        if not self._colours or colour not in _COLOURS:
            return text
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


_RELEASED: Final[Mapping[str, str]] = {
    "completed": "completed",
    "failed_retry_scheduled": "failed, a retry is scheduled",
    "failed_terminal": "failed for good",
    "cancelled": "cancelled",
    "expired:attempt_timeout": "expired: the attempt took too long",
}


def told(kind: str, fields: Mapping[str, str]) -> str:
    """A lease event in words."""
    worker = fields.get("worker_instance_id", "")
    attempt = fields.get("attempt_index", "")
    match kind:
        case "acquired":
            return f"attempt {attempt} started by {worker}"
        case "released":
            return _RELEASED.get(fields.get("reason", ""), f"released: {fields.get('reason', '')}")
        case "expired":
            return f"lease of {worker} ran out: nobody renewed it"
        case "reclaimed":
            return f"taken over by {worker} as attempt {fields.get('new_attempt_index', '')}"
        case _:
            return kind


def short_history(history: tuple[HistoryEntry, ...]) -> str:
    return " → ".join(entry.event for entry in history)
