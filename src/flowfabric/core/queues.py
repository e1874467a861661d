"""Queues: in which one an execution waits, by what it requires and its kind, and which of them a
claim takes.

The name of a queue is `<requirement set>.<kind>`, and may go on with `.<version>`. Sets are
registered per lane; kinds are not, so that there may be any number of them.
"""

from bisect import bisect_right
from collections.abc import Container, Iterable
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Final
from zlib import crc32

MOST_KINDS: Final = 1_000
"""How many kinds a claim may name."""
FEW_QUEUES: Final = 4
"""So many queues are asked for by name, whether they have work or not."""
MOST_FOREIGN: Final = 1_000
"""How many queues of others a claim passes over before it asks for its own by name."""
MOST_NAMED: Final = 4_096
"""How many of its own queues a claim asks for by name; the next claim begins elsewhere."""

# Behind every name that a queue's name can be continued to with a dot, and before all others.
_BEHIND: Final = "!"


@lru_cache(maxsize=10_000)
def kind_id(kind: str) -> str:
    """What stands for a kind in names of queues."""
    return sha256(kind.encode()).hexdigest()[:16]


def queue_of(set_id: str, kind: str) -> str:
    """The queue of executions of this kind with these requirements."""
    return f"{set_id}.{kind_id(kind)}"


def set_of(queue: str) -> str:
    """The id of the requirement set that a queue's name begins with."""
    return queue.partition(".")[0]


def takes(queue: str, sets: Container[str], kinds: Container[str] | None) -> bool:
    """Whether a claim for these requirement sets and kinds takes a queue."""
    set_id, _, rest = queue.partition(".")
    if set_id not in sets:
        return False
    return kinds is None or rest.partition(".")[0] in kinds


class QueueFilter:
    """Which queues a claim takes: those of these requirement sets, and of these kinds (by their
    ids) or, with None, of every kind. `unmet` are sets that are known not to be met, if those
    matter: others may have been registered since."""

    def __init__(
        self,
        sets: Iterable[str],
        kinds: Iterable[str] | None = None,
        unmet: Iterable[str] | None = None,
    ) -> None:
        self.sets = frozenset(sets)
        self.kinds = None if kinds is None else frozenset(kinds)
        self.unmet = None if unmet is None else frozenset(unmet)
        self._names = (self.sets, self.kinds, self.unmet)
        self._hash = hash(self._names)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, QueueFilter):
            return NotImplemented
        return self._names == other._names

    def __repr__(self) -> str:
        return f"QueueFilter({self._sorted_sets}, {self._sorted_kinds})"

    def takes(self, queue: str) -> bool:
        return takes(queue, self.sets, self.kinds)

    def may_take(self, queue: str) -> bool:
        """Whether it would if the queue's set, which is not known here, is met."""
        own = set_of(queue)
        if self.unmet is None or own in self.sets or own in self.unmet:
            return False
        return takes(queue, (own,), self.kinds)

    def overlaps(self, other: "QueueFilter") -> bool:
        """Whether there may be a queue that both take."""
        if self is other:
            return True
        if self.sets.isdisjoint(other.sets):
            return False
        return self.kinds is None or other.kinds is None or not self.kinds.isdisjoint(other.kinds)

    @property
    def size(self) -> int | None:
        """How many names it stands for; None when it takes every kind."""
        return None if self.kinds is None else len(self.sets) * len(self.kinds)

    @property
    def is_small(self) -> bool:
        """Whether its queues are asked for by name, without a look at which ones have work."""
        return self.size is not None and self.size <= FEW_QUEUES

    @cached_property
    def names(self) -> list[str]:
        """All of its queues that have no version, in order; none when it takes every kind."""
        return [f"{one}.{kind}" for one in self._sorted_sets for kind in self._sorted_kinds]

    def named(self, turn: int) -> list[str]:
        """As many of them as one claim may ask for, another part in another turn."""
        if self.size is None or self.size <= MOST_NAMED:
            return self.names
        start = turn % self.size
        return (self.names[start:] + self.names[:start])[:MOST_NAMED]

    def next_behind(self, queue: str) -> str | None:
        """The first place, in the order of names, behind a queue where one of its own may stand;
        None when none can. The empty name is before all others."""
        set_id, _, rest = queue.partition(".")
        kinds = self._sorted_kinds
        if set_id in self.sets:
            if self.takes(queue):
                return queue + _BEHIND
            at = bisect_right(kinds, rest.partition(".")[0])
            if at < len(kinds):
                return f"{set_id}.{kinds[at]}"
        at = bisect_right(self._sorted_sets, set_id)
        if at == len(self._sorted_sets) or (self.kinds is not None and not kinds):
            return None
        first = self._sorted_sets[at]
        return f"{first}.{kinds[0]}" if kinds else first

    @cached_property
    def _sorted_sets(self) -> list[str]:
        return sorted(self.sets)

    @cached_property
    def _sorted_kinds(self) -> list[str]:
        return sorted(self.kinds or ())


@lru_cache(maxsize=1_024)
def queue_filter(sets: tuple[str, ...], kinds: frozenset[str] | None = None) -> QueueFilter:
    """The same filter for the same names, so that what it knows of itself is worked out once."""
    return QueueFilter(sets, kinds)


def turn_of(lease_id: str) -> int:
    """A number that is another one with every claim, from one of the ids it brings along."""
    return crc32(lease_id.encode())
