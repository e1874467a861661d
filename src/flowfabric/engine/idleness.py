"""Which lanes were found empty, until a notification says otherwise."""

from collections.abc import Callable
from typing import Final, NamedTuple

from flowfabric.backend.base import Notifier, lane_topic

Mark = tuple[int, ...]
# Of so many orders it is remembered; then all of it is forgotten, and the next ones look again.
_MOST: Final = 10_000


class Sought(NamedTuple):
    """Where a worker looks: the topics of the lanes it may claim from, in whatever order it takes
    turns at them, and the requirement sets it meets."""

    notifier: tuple[str, ...]
    sets: tuple[str, ...]


def sought_in(namespace: str, lanes: tuple[str, ...], sets: tuple[str, ...]) -> Sought:
    return Sought(tuple(sorted(lane_topic(namespace, lane) for lane in lanes)), sets)


class Idleness:
    """A worker that got less than it asked for need not look again before it waits for more."""

    def __init__(self, notifier: Callable[[], Notifier]) -> None:
        self._notifier = notifier
        self._empty: dict[Sought, Mark] = {}

    def mark(self, sought: Sought) -> Mark | None:
        """What had been notified before a look."""
        return self._notifier().mark(*sought.notifier)

    def note(self, sought: Sought, mark: Mark | None, *, is_empty: bool) -> None:
        """What a look has left behind."""
        if mark is None or not is_empty:
            self._empty.pop(sought, None)
            return
        if len(self._empty) >= _MOST:
            self._empty.clear()
        self._empty[sought] = mark

    def covers(self, sought: Sought) -> bool:
        """Whether a look would find nothing."""
        mark = self._empty.get(sought)
        return mark is not None and mark == self.mark(sought)
