"""Which lanes were found empty, for as long as no doorbell says otherwise."""

from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from flowfabric.backend.base import Bells, lane_bell
from flowfabric.backend.types import ClaimAnswer, ClaimRequest

Mark = tuple[int, ...]
# Of so many orders it is remembered; then all of it is forgotten, and the next ones look again.
_MOST: Final = 10_000


class Sought(NamedTuple):
    """Where a worker looks: the bells of the lanes it may claim from, in whatever order it takes
    turns at them, and the requirement sets it meets."""

    bells: tuple[str, ...]
    sets: tuple[str, ...]


@lru_cache(maxsize=1024)
def sought_in(namespace: str, lanes: tuple[str, ...], sets: tuple[str, ...]) -> Sought:
    return Sought(tuple(sorted(lane_bell(namespace, lane) for lane in lanes)), sets)


class Look(msgspec.Struct, frozen=True):
    """What is sought, and what its bells had rung before."""

    sought: Sought
    mark: Mark | None


class Idleness:
    """A worker that got less than it asked for need not look again before it waits for more."""

    def __init__(self, bells: Callable[[], Bells]) -> None:
        self._bells = bells
        self._empty: dict[Sought, Mark] = {}

    def begin(self, request: ClaimRequest) -> Look:
        """To be called before the look."""
        sought = sought_in(request.namespace, request.lanes, request.sets)
        return Look(sought, self._bells().mark(*sought.bells))

    def end(self, look: Look, request: ClaimRequest, answer: ClaimAnswer) -> None:
        """What a look has left behind."""
        is_empty = not answer.more and len(answer.offers) < len(request.ids)
        if look.mark is None or not is_empty:
            self._empty.pop(look.sought, None)
            return
        if len(self._empty) >= _MOST:
            self._empty.clear()
        self._empty[look.sought] = look.mark

    def covers(self, sought: Sought) -> bool:
        """Whether a look would find nothing."""
        mark = self._empty.get(sought)
        return mark is not None and mark == self._bells().mark(*sought.bells)
