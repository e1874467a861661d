"""How large the journal of an execution is: it is warned of once, and never passed."""

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from flowfabric.core.journal import MAX_ENTRIES, JournalEntry

MAX_BYTES: Final = 64 * 1024 * 1024
WARN_ENTRIES: Final = 8_000
WARN_BYTES: Final = 48 * 1024 * 1024
JOURNAL_FULL: Final = "journal_full"

_log = logging.getLogger("flowfabric.worker")


class JournalSize:
    """Entries and the bytes of their outcomes, counted by the holder of the lease."""

    def __init__(self) -> None:
        self._entries = 0
        self._bytes = 0

    def load(self, entries: Iterable[JournalEntry]) -> None:
        """Count what was there before."""
        for one in entries:
            self._entries += 1
            self._bytes += len(one.outcome)

    def has_room(self, more: Sequence[JournalEntry]) -> bool:
        size = sum(len(one.outcome) for one in more)
        return self._entries + len(more) <= MAX_ENTRIES and self._bytes + size <= MAX_BYTES

    def add(self, more: Sequence[JournalEntry]) -> None:
        was_large = self._is_large
        self.load(more)
        if self._is_large and not was_large:
            _log.warning(
                "the journal has %s: a handler that goes on for long calls ctx.restart", self
            )

    @property
    def _is_large(self) -> bool:
        return self._entries >= WARN_ENTRIES or self._bytes >= WARN_BYTES

    def __str__(self) -> str:
        return (
            f"{self._entries:,} entries and {self._bytes:,} bytes,"
            f" at most {MAX_ENTRIES:,} and {MAX_BYTES:,}"
        )
