"""Backoff per item: what keeps failing is skipped for a while. Kept in memory."""

import logging
from typing import Final

_log = logging.getLogger("flowfabric.duties")

_FAILURES: Final = 3
_SKIPPED_CYCLES: Final = 10
_UPKEEP_CYCLES: Final = 50
_MOST_TRACKED: Final = 500


class ItemBackoff:
    """After three failures in a row an item is left alone for ten cycles, then tried again."""

    def __init__(self, duty: str) -> None:
        self._duty = duty
        self._cycle = 0
        self._failures: dict[str, int] = {}
        self._until: dict[str, int] = {}

    def __len__(self) -> int:
        """How many items are being left alone."""
        return len(self._until)

    def new_cycle(self) -> None:
        self._cycle += 1
        if self._cycle % _UPKEEP_CYCLES == 0 and len(self._failures) > _MOST_TRACKED:
            self._failures = {name: self._failures[name] for name in self._until}

    def skips(self, name: str) -> bool:
        until = self._until.get(name)
        if until is None:
            return False
        if self._cycle <= until:
            return True
        self.worked(name)
        return False

    def failed(self, name: str) -> None:
        self._failures[name] = self._failures.get(name, 0) + 1
        if self._failures[name] >= _FAILURES:
            _log.warning("%s: persistent failure — skipping %s for a while", self._duty, name)
            self._until[name] = self._cycle + _SKIPPED_CYCLES

    def worked(self, name: str) -> None:
        self._failures.pop(name, None)
        self._until.pop(name, None)
