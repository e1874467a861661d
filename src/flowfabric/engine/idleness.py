"""Which lanes were found empty, for as long as no doorbell says otherwise."""

from collections.abc import Callable
from typing import Final, NamedTuple

from flowfabric.backend.base import Bells, lane_bell
from flowfabric.backend.types import ClaimAnswer, ClaimRequest

Mark = tuple[int, ...]
# Of so many orders it is remembered; then all of it is forgotten, and the next ones look again.
_MOST: Final = 10_000


class Sought(NamedTuple):
    """Where a worker looks: the lanes it may claim from, and the requirement sets it meets."""

    namespace: str
    lanes: tuple[str, ...]
    sets: tuple[str, ...]

    def in_order(self) -> "Sought":
        """Workers take turns at which of their lanes comes first."""
        return Sought(self.namespace, tuple(sorted(self.lanes)), self.sets)


class Idleness:
    """A worker that got less than it asked for need not look again before it waits for more."""

    def __init__(self, bells: Callable[[], Bells]) -> None:
        self._bells = bells
        self._empty: dict[Sought, Mark] = {}

    def mark(self, request: ClaimRequest) -> Mark | None:
        """To be taken before the look."""
        return self._mark(_sought(request))

    def note(self, request: ClaimRequest, mark: Mark | None, answer: ClaimAnswer) -> None:
        """What a look has left behind."""
        sought = _sought(request)
        is_empty = not answer.more and len(answer.offers) < len(request.ids)
        if mark is None or not is_empty:
            self._empty.pop(sought, None)
            return
        if len(self._empty) >= _MOST:
            self._empty.clear()
        self._empty[sought] = mark

    def covers(self, sought: Sought) -> bool:
        """Whether a look would find nothing."""
        sought = sought.in_order()
        mark = self._empty.get(sought)
        return mark is not None and mark == self._mark(sought)

    def _mark(self, sought: Sought) -> Mark | None:
        return self._bells().mark(*(lane_bell(sought.namespace, lane) for lane in sought.lanes))


def _sought(request: ClaimRequest) -> Sought:
    return Sought(request.namespace, request.lanes, request.sets).in_order()
