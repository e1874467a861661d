"""Lanes: their state, the requirement sets of work on them, and which of them were found empty."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Final, NamedTuple

import msgspec

from flowfabric.backend.base import Backend, Notifier, lane_topic
from flowfabric.backend.optimistic import WRITE_CONFLICT, WriteConflict, decide
from flowfabric.backend.types import ConfigPut
from flowfabric.core.capabilities import satisfied
from flowfabric.core.ids import check_lane, check_namespace, check_text
from flowfabric.core.queues import QueueFilter, kind_id, queue_filter, set_of
from flowfabric.core.record import Record, queued_since
from flowfabric.core.states import LANE_STATES, serves_claims
from flowfabric.engine.checking import stored, whole
from flowfabric.engine.config_cache import ConfigCache
from flowfabric.engine.draining import drain
from flowfabric.errors import InvalidInput, ResourceExhausted
from flowfabric.operations import lanes as declared
from flowfabric.operations.declaration import implements
from flowfabric.operations.lanes import LaneInfo, LaneQueues, Queue
from flowfabric.operations.types import Page
from flowfabric.operations.workers import ClaimTerms

Mark = tuple[int, ...]
# At most so many entries; then the cache is cleared and the next claims ask the store.
_MOST: Final = 10_000


class Sought(NamedTuple):
    """Where a worker looks: the topics of the lanes it may claim from, in whatever order it takes
    turns at them, and the queues that it takes there."""

    topics: tuple[str, ...]
    takes: QueueFilter


def sought_in(namespace: str, lanes: tuple[str, ...], takes: QueueFilter) -> Sought:
    return Sought(tuple(sorted(lane_topic(namespace, lane) for lane in lanes)), takes)


class Idleness:
    """Lanes found empty: a worker that got less than it asked for can wait without asking again."""

    def __init__(self, notifier: Callable[[], Notifier]) -> None:
        self._notifier = notifier
        self._empty: dict[Sought, Mark] = {}

    def mark(self, sought: Sought) -> Mark | None:
        """The state of the notifications before a claim."""
        return self._notifier().mark(*sought.topics, takes=sought.takes)

    def note(self, sought: Sought, mark: Mark | None, *, is_empty: bool) -> None:
        """Remember whether the claim that began at this mark left the lanes empty."""
        if mark is None or not is_empty:
            self._empty.pop(sought, None)
            return
        if len(self._empty) >= _MOST:
            self._empty.clear()
        self._empty[sought] = mark

    def covers(self, sought: Sought) -> bool:
        """Whether the lanes were left empty and nothing was notified since."""
        mark = self._empty.get(sought)
        return mark is not None and mark == self.mark(sought)


_log = logging.getLogger("flowfabric.lanes")

MOST_SETS: Final = 1_000
MOST_SHARDS: Final = 256
MOST_LISTED: Final = 1_000
_MOST_ROUTES: Final = 1_000

Name = tuple[str, str]
# Of a claim: its namespace, lanes, capabilities and kinds.
_Asked = tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...] | None]


class Lane(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is configured for one lane of a namespace."""

    state: str = "active"
    lane_shards: int = 1


class Route(msgspec.Struct, frozen=True):
    """Lanes that may be claimed from, the requirement sets a worker meets on them, and the work
    that it is notified of: also that of sets which are not known yet."""

    lanes: tuple[str, ...]
    sets: tuple[str, ...]
    sought: Sought
    hears: QueueFilter


class Known(msgspec.Struct, frozen=True):
    lane: Lane
    sets: dict[str, tuple[str, ...]]
    is_stored: bool


_lane_decoder: Final = msgspec.json.Decoder(Lane)
_sets_decoder: Final = msgspec.json.Decoder(dict[str, tuple[str, ...]])


_LANES: Final = "lane/"
# Separates namespace and lane: no namespace contains it.
_END: Final = ":"


def _lane_document(namespace: str, lane: str) -> str:
    return f"{_LANES}{namespace}{_END}{lane}"


def _sets_document(namespace: str, lane: str) -> str:
    return f"sets/{namespace}{_END}{lane}"


class Lanes:
    """A cache of lane documents."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._cache = ConfigCache[Name, Known](backend, "reading a lane", self._read)
        # The lane as cached, None when it must be looked up.
        self.known = self._cache.known
        # Answers derived from the cache; they go whenever a lane is read anew.
        self._routes: dict[_Asked, Route] = {}
        self._registering: set[asyncio.Task[None]] = set()

    async def look_up(self, namespace: str, lane: str) -> Lane:
        """The lane as stored, or, while the store does not answer, as last read."""
        return (await self._cache.soon((namespace, lane))).lane

    def used(self, namespace: str, lane: str) -> None:
        """Store the document of a lane that got its first work; doing it twice is harmless."""
        name = (namespace, lane)
        found = self._cache.entries.get(name)
        if found is not None:
            if found.value.is_stored:
                return
            self._cache.change(name, msgspec.structs.replace(found.value, is_stored=True))
        task = asyncio.ensure_future(self._register(namespace, lane))
        self._registering.add(task)
        task.add_done_callback(self._registering.discard)

    async def route(self, order: ClaimTerms) -> Route:
        """Where a worker may claim now, and what it could run there."""
        namespace, lanes = order.namespace, order.lanes
        asked = (namespace, lanes, order.capabilities, order.kinds)
        for lane in lanes:
            if self.known((namespace, lane)) is None:
                break
        else:
            remembered = self._routes.get(asked)
            if remembered is not None:
                return remembered
        known = [(lane, await self._cache.fresh((namespace, lane))) for lane in lanes]
        claimable = [one for one in known if serves_claims(one[1].lane.state)]
        sets: dict[str, tuple[str, ...]] = {}
        for _, found in claimable:
            sets.update(found.sets)
        claimed, met = tuple(lane for lane, _ in claimable), satisfied(sets, order.capabilities)
        kinds = None if order.kinds is None else frozenset(map(kind_id, order.kinds))
        takes = queue_filter(met, kinds)
        hears = QueueFilter(met, kinds, unmet=sets.keys() - set(met))
        route = Route(claimed, met, sought_in(namespace, claimed, takes), hears)
        if len(self._routes) >= _MOST_ROUTES:
            self._routes.clear()
        self._routes[asked] = route
        return route

    async def register_set(self, record: Record) -> None:
        """Make the record's requirement set known before anything waits under it."""
        name = (record.namespace, record.lane)
        if set_of(record.req_set) in (await self._cache.fresh(name)).sets:
            return
        await decide(
            "the requirement sets of lane", record.lane, partial(self._add_set, name, record)
        )
        self._cache.drop(name)

    async def configure(
        self, namespace: str, lane: str, *, state: str | None = None, shards: int | None = None
    ) -> Lane:
        """Change a lane; what is not given stays."""
        check_namespace(namespace)
        check_lane(lane)
        if state is not None and state not in LANE_STATES:
            raise InvalidInput(f"state: expected one of {', '.join(LANE_STATES)}, got {state!r}")
        if shards is not None:
            whole(shards, "lane_shards", 1, MOST_SHARDS)
        attempt = partial(self._put_lane, (namespace, lane), state, shards)
        return await decide("lane", lane, attempt)

    @implements(declared.Lanes.set_lane)
    async def set_lane(
        self,
        lane: str,
        namespace: str = "default",
        *,
        state: str | None = None,
        lane_shards: int | None = None,
    ) -> LaneInfo:
        changed = await self.configure(namespace, lane, state=state, shards=lane_shards)
        return _info(namespace, lane, changed)

    @implements(declared.Lanes.list_lanes)
    async def list_lanes(
        self, namespace: str = "default", cursor: str = "", limit: int = 50
    ) -> Page[LaneInfo]:
        check_namespace(namespace)
        check_text(cursor, "cursor", 256)
        if whole(limit, "limit", 0, MOST_LISTED) == 0:
            return Page(items=[])
        prefix = _lane_document(namespace, "")
        rows = await self._backend.config_list(prefix, prefix + cursor, limit + 1)
        lanes = [
            _info(
                namespace,
                _stored_name(row.name.removeprefix(prefix)),
                _lane_decoder.decode(row.body),
            )
            for row in rows
        ]
        more = len(lanes) > limit
        return Page(items=lanes[:limit], next_cursor=lanes[limit - 1].lane_id if more else "")

    @implements(declared.Lanes.lane_queues)
    async def lane_queues(self, lane: str, namespace: str = "default") -> LaneQueues:
        check_namespace(namespace)
        check_lane(lane)
        known = await self._cache.read((namespace, lane))
        now = await self._backend.now()
        queues = tuple(
            Queue(
                requirement_set=set_of(queue.req_set),
                kind=queue.kind,
                capabilities=known.sets.get(set_of(queue.req_set), ()),
                depth=queue.depth,
                oldest_waiting_ms=max(0, now - queued_since(queue.best_rank, now)),
            )
            for queue in await self._backend.queues(namespace, lane)
        )
        return LaneQueues(state=known.lane.state, queues=queues)

    async def list_all(self, most: int) -> list[Name]:
        """Lanes of all namespaces, so many at most, by their names."""
        rows = await self._backend.config_list(_LANES, _LANES, most)
        names = (row.name.removeprefix(_LANES).partition(_END) for row in rows)
        return [(namespace, _stored_name(lane)) for namespace, _, lane in names]

    async def every(self, namespace: str = "") -> AsyncIterator[Name]:
        """Every lane of a namespace, or of all of them."""
        prefix = after = _lane_document(namespace, "") if namespace else _LANES
        while rows := await self._backend.config_list(prefix, after, MOST_LISTED):
            for row in rows:
                owner, _, lane = row.name.removeprefix(_LANES).partition(_END)
                yield owner, _stored_name(lane)
            after = rows[-1].name

    async def drain(self, *, waits: bool = True) -> bool:
        """Wait until the documents of all lanes used so far are stored; whether all are."""
        return not await drain(lambda: self._registering, waits=waits)

    async def close(self) -> None:
        await self._cache.close()

    async def _read(self, name: Name) -> Known:
        lane, sets = await self._backend.config_get([_lane_document(*name), _sets_document(*name)])
        self._routes.clear()
        return Known(
            lane=_lane_decoder.decode(lane.body) if lane else Lane(),
            sets=_sets_decoder.decode(sets.body) if sets else {},
            is_stored=lane is not None,
        )

    async def _register(self, namespace: str, lane: str) -> None:
        put = ConfigPut(_lane_document(namespace, lane), 0, msgspec.json.encode(Lane()))
        try:
            await self._backend.config_put([put])
        except Exception:
            _log.exception("lane %s of namespace %s could not be registered", lane, namespace)

    async def _add_set(self, name: Name, record: Record) -> WriteConflict | None:
        document = (await self._backend.config_get([_sets_document(*name)]))[0]
        sets = _sets_decoder.decode(document.body) if document else {}
        own = set_of(record.req_set)
        if own in sets:
            return None
        if len(sets) >= MOST_SETS:
            raise ResourceExhausted(f"requirement_sets: lane {record.lane} has {MOST_SETS}")
        sets[own] = record.required_capabilities
        expected = document.version if document else 0
        put = ConfigPut(_sets_document(*name), expected, msgspec.json.encode(sets))
        return None if (await self._backend.config_put([put]))[0].applied else WRITE_CONFLICT

    async def _put_lane(
        self, name: Name, state: str | None, shards: int | None
    ) -> Lane | WriteConflict:
        document = (await self._backend.config_get([_lane_document(*name)]))[0]
        lane = _lane_decoder.decode(document.body) if document else Lane()
        changed = Lane(state or lane.state, shards or lane.lane_shards)
        expected = document.version if document else 0
        put = ConfigPut(_lane_document(*name), expected, msgspec.json.encode(changed))
        applied = (await self._backend.config_put([put]))[0].applied
        self._cache.drop(name)
        return changed if applied else WRITE_CONFLICT


def _info(namespace: str, name: str, lane: Lane) -> LaneInfo:
    return LaneInfo(
        namespace=namespace, lane_id=name, state=lane.state, lane_shards=lane.lane_shards
    )


def _stored_name(lane: str) -> str:
    return stored("lanes: name", check_lane, lane)
