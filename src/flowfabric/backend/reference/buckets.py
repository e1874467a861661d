"""Ordered places for keys: what a view, a key range or an adjacency list is made of."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from sortedcontainers import SortedList

from flowfabric.core.views import Key

K = TypeVar("K")
V = TypeVar("V")

# A bucket of so many orders is put in order while it grows: to sort tens of thousands at the first
# look would keep everybody else out of the store for as long as it takes.
MOST_LOOSE: Final = 1_000
_MOST_UNSORTED: Final = 16


class Rows(Generic[K, V]):
    """The rows of one table. Keys are put in order when somebody first asks for a range, because
    most tables are only ever read by key."""

    def __init__(self) -> None:
        self.by_key: dict[K, V] = {}
        self._ordered: SortedList[Any] | None = None

    def put(self, key: K, value: V) -> None:
        if self._ordered is not None and key not in self.by_key:
            self._ordered.add(key)
        self.by_key[key] = value

    def drop(self, key: K) -> None:
        if self.by_key.pop(key, None) is not None and self._ordered is not None:
            self._ordered.remove(key)

    def keys_behind(self, start: Any) -> Iterator[K]:
        """Keys in order, strictly behind `start`; None is before the first."""
        if self._ordered is None:
            self._ordered = SortedList(self.by_key)
        return self._ordered.irange(start, None, (False, False))


class Buckets:
    """One view: under each key the orders of its records.

    A key's few orders stay an unordered set until somebody first asks for their order: most views
    are written at every step and read seldom. A single order stands for itself: of most adjacency
    lists there is no more, and the garbage collector would have to walk a container for each.
    """

    def __init__(self) -> None:
        self._by_key: dict[Key, Key | set[Key] | SortedList[Key]] = {}

    def add(self, key: Key, order: Key) -> None:
        bucket = self._by_key.get(key)
        if bucket is None:
            self._by_key[key] = order
        elif isinstance(bucket, tuple):
            self._by_key[key] = {bucket, order}
        else:
            bucket.add(order)
            if len(bucket) == MOST_LOOSE:
                self._in_order(key, bucket)

    def remove(self, key: Key, order: Key) -> None:
        bucket = self._by_key[key]
        if isinstance(bucket, tuple):
            if bucket != order:
                raise KeyError(order)
            del self._by_key[key]
            return
        bucket.remove(order)
        if not bucket:
            del self._by_key[key]

    def walk(
        self,
        key: Key,
        after: Key | None,
        limit: int,
        *,
        newest: bool = False,
        before: Key | None = None,
    ) -> list[Any]:
        """Orders under one key, forwards or backwards, strictly behind `after`, and forwards
        strictly before `before`."""
        bucket = self._by_key.get(key)
        if bucket is None:
            return []
        low, high = (None, after) if newest else (after, before)
        if isinstance(bucket, tuple):
            is_within = (low is None or low < bucket) and (high is None or bucket < high)
            return [bucket] if is_within and limit > 0 else []
        orders = self._in_order(key, bucket).irange(low, high, (False, False), reverse=newest)
        return list(islice(orders, max(0, limit)))

    def keys_under(self, prefix: Key = ()) -> list[Key]:
        width = len(prefix)
        return sorted(key for key in self._by_key if key[:width] == prefix)

    def size(self, key: Key) -> int:
        bucket = self._by_key.get(key, set())
        return 1 if isinstance(bucket, tuple) else len(bucket)

    def first(self, key: Key) -> Key:
        bucket = self._by_key[key]
        return bucket if isinstance(bucket, tuple) else self._in_order(key, bucket)[0]

    def _in_order(self, key: Key, bucket: set[Key] | SortedList[Key]) -> SortedList[Key]:
        if isinstance(bucket, set):
            bucket = self._by_key[key] = SortedList(bucket)
        return bucket


class GroupedBuckets(Buckets):
    """A view whose keys are also found by all but their last value, in the order of that one."""

    def __init__(self) -> None:
        super().__init__()
        # A few are sorted when somebody asks.
        self._names: dict[Key, set[Any] | SortedList[Any]] = {}

    def add(self, key: Key, order: Key) -> None:
        if key not in self._by_key:
            group, name = key[:-1], key[-1]
            names = self._names.get(group)
            if names is None:
                self._names[group] = {name}
            else:
                names.add(name)
                if isinstance(names, set) and len(names) > _MOST_UNSORTED:
                    self._names[group] = SortedList(names)
        super().add(key, order)

    def remove(self, key: Key, order: Key) -> None:
        super().remove(key, order)
        if key not in self._by_key:
            group, name = key[:-1], key[-1]
            names = self._names[group]
            names.remove(name)
            if not names:
                del self._names[group]

    def names_from(self, group: Key, start: str) -> Iterator[Any]:
        names = self._names.get(group, ())
        if isinstance(names, SortedList):
            return iter(names.irange(start))
        return iter(sorted(name for name in names if name >= start))
