"""Events that the parts of the system report; the default observer ignores them."""

from collections.abc import Callable, Mapping

import msgspec


class CounterTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Totals that an engine and its store count themselves, since they were opened."""

    # By (budget or quota, dimension or reason): starts that a limit held.
    hits: Mapping[tuple[str, str], int] = {}
    # By what became of a sibling: the reason it was cancelled for, or why it was not.
    siblings: Mapping[str, int] = {}
    reconnects: int = 0
    reloads: int = 0
    log_lag_s: float = 0.0


class Observer:
    """Each method is called after its event; it returns at once and never raises."""

    def served(self, method: str, path: str, status: int, seconds: float) -> None:
        """A request was answered; `path` is its route's template."""

    def store_call_failed(self, op: str, kind: str) -> None:
        """A call of a store failed with an error of this kind."""

    def claimed(self, lane: str, seconds: float) -> None:
        """A claim came back, with work or without."""

    def renewed(self, is_ok: bool) -> None:
        """A lease was renewed, or was not."""

    def attempted(self, lane: str, outcome: str) -> None:
        """An attempt ended: ok, error, timeout, cancelled or retry."""

    def ended(self, lane: str, outcome: str, seconds: float | None) -> None:
        """An execution ended; how long it took since it was submitted, where that is known."""

    def completed(self, outcome: str) -> None:
        """A completion was written to the log."""

    def signalled(self, effect: str) -> None:
        """A signal was accepted, buffered or recognised as a repeat."""

    def cycled(self, duty: str, seconds: float) -> None:
        """A duty made one visit."""

    def processed(self, duty: str, result: str, n: int) -> None:
        """A duty processed, failed on or skipped items."""

    def restarted(self, duty: str) -> None:
        """A duty failed and was started again."""

    def backed_off(self, duty: str, n: int) -> None:
        """How many items a duty does not try for a while, because they failed."""

    def cancel_backlog(self, n: int) -> None:
        """How many cancelled flows still have members to cancel."""

    def grouped(self, policy: str, n: int) -> None:
        """Inbound edges of so many members combine by this policy."""

    def drained(self, n: int) -> None:
        """A timer finished so many cancels of siblings that were interrupted."""

    def at_capacity(self) -> None:
        """A claim found no permit to wait with."""

    def rejected(self, pool: str) -> None:
        """A call found its pool exhausted."""

    def overran_shutdown(self) -> None:
        """Something did not end in the time a drain gives it."""

    def read_totals_from(self, read: Callable[[], CounterTotals]) -> None:
        """Where the totals that others count are read."""


NO_OBSERVER = Observer()
