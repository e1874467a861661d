"""Mechanism `list`: the views that fit a filter and an order best, walked over all partitions."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from flowfabric.backend.reference.search import PLACES, Stretch, lane_buckets, walk_through
from flowfabric.backend.types import Filter, ListRequest, Page
from flowfabric.backend.valkey.calls import Calls, Read
from flowfabric.backend.valkey.fan_out import ask_tags, fetch_from_nodes
from flowfabric.backend.valkey.keys import (
    FIELDS,
    FLOW_RANGES,
    partition_tag,
    queue_view,
    queues_key,
    state_view,
    stored_key,
    tag_view,
)
from flowfabric.backend.valkey.packing import record_from
from flowfabric.backend.valkey.requests import ListView
from flowfabric.core.record import Record
from flowfabric.core.states import STATES
from flowfabric.core.views import Key


class Spot(NamedTuple):
    """A place of one of several views, which is named by its number among their names."""

    score: int
    id: str
    view: int = 0


class ViewKeys(NamedTuple):
    """The views that together show what a request asks for, in one order."""

    # Of a flow's view with the place where a state's range of scores begins.
    names: Sequence[str | tuple[str, int]]
    partitions: Sequence[int]
    newest: bool = False
    # Only what has a score up to now.
    is_due: bool = False


def _record_read(execution_id: str) -> Read:
    return ("HMGET", stored_key("execution", execution_id), FIELDS["record"], FIELDS["static"])


class View(NamedTuple):
    """What one call has found in a view, which is named by its number among the names."""

    number: int
    spots: list[Spot]
    has_more: bool


class SearchMechanism:
    _calls: Calls

    async def search(self, request: ListRequest) -> Page:
        walk = walk_through(request)
        try:
            after, size = next(walk)
            keys = await self._view_keys(request)
            while True:
                after, size = walk.send(await self._stretch(request, keys, after, size))
        except StopIteration as done:
            page: Page = done.value
            return page

    @property
    def _everywhere(self) -> range:
        return range(self._calls.counts.flow)

    async def walk_view(self, keys: ViewKeys, after: Spot | None, most: int) -> list[Spot]:
        """Places behind `after` in the order of the views, most of which may be empty."""
        found: list[Spot] = []
        while len(found) < most:
            views = await self._views(keys, after, most - len(found))
            spots = merged(views, newest=keys.newest)
            found += spots[: most - len(found)]
            if not any(view.has_more for view in views):
                break
            after = found[-1]
        return found

    async def records(self, ids: Sequence[str]) -> list[Record | None]:
        """Records of any partitions, in the order of the ids."""
        fetched = await fetch_from_nodes(self._calls, [_record_read(one) for one in ids])
        return [record_from(*found) if found[0] else None for found in fetched.checked()]

    async def _stretch(
        self, request: ListRequest, keys: ViewKeys, after: Key | None, size: int
    ) -> Stretch:
        place, by_id = PLACES[request.order], request.order == "id"
        spots = await self.walk_view(keys, _spot(after), size)
        places: list[Key] = [(spot.id,) if by_id else (spot.score, spot.id) for spot in spots]
        records = await self.records([spot.id for spot in spots])
        # One that has moved since it was found is answered where it stands now, or was already.
        unmoved = [
            record
            for found, record in zip(places, records, strict=True)
            if record is not None and place(record) == found
        ]
        return Stretch(unmoved, places[-1] if len(places) == size else None)

    async def _view_keys(self, request: ListRequest) -> ViewKeys:
        wanted = request.filter
        partitions = self._everywhere if wanted.partition is None else [wanted.partition]
        index = self._calls.index_partitions(partitions)
        instance = wanted.worker_instance_id
        match request.order:
            case "id" if instance:
                return ViewKeys([f"worker:{instance}"], index)
            case "id":
                return ViewKeys(["partition"], partitions)
            case "due":
                return ViewKeys(["timers"], index)
            case "view":
                return ViewKeys(await self._lane_views(wanted), index)
            case _ if wanted.flow_id:
                return self._members(wanted, newest=request.order == "created_newest")
            case _:
                return ViewKeys([self._by_age(wanted)], index, request.order == "created_newest")

    def _members(self, wanted: Filter, *, newest: bool) -> ViewKeys:
        """A flow's members stand with it, by state and creation."""
        name = f"flow:{wanted.flow_id}"
        states = [wanted.state] if wanted.state in STATES else sorted(STATES)
        partition = self._calls.counts.of_flow(wanted.flow_id)
        return ViewKeys([(name, FLOW_RANGES[state]) for state in states], [partition], newest)

    def _by_age(self, wanted: Filter) -> str:
        if wanted.tag and wanted.namespace and wanted.tag[0] in self._calls.searchable:
            return tag_view(wanted.namespace, *wanted.tag)
        if wanted.namespace and wanted.lane and wanted.state == "active":
            # The only state whose records a lane lists by creation.
            return state_view("active", wanted.namespace, wanted.lane)
        return "all"

    async def _lane_views(self, wanted: Filter) -> list[str]:
        """A lane's own order. What waits stands in its queues, by requirement set."""
        namespace, lane = wanted.namespace, wanted.lane
        buckets = lane_buckets(wanted)
        names = [state_view(bucket, namespace, lane) for bucket in buckets]
        if "waiting" not in buckets:
            return names
        queued = sorted({name for _, name in await self.lane_queues(namespace, lane)})
        return names + [queue_view(name, namespace, lane) for name in queued]

    async def lane_queues(self, namespace: str, lane: str) -> list[tuple[str, str]]:
        """The queues of a lane that have work, each with the tag where it has some."""
        tags = [*map(partition_tag, self._calls.index_partitions(self._everywhere))]
        reads = [("ZRANGE", queues_key(tag, namespace, lane), "0", "-1") for tag in tags]
        found = (await fetch_from_nodes(self._calls, reads)).checked()
        return [
            (tag, name.decode()) for tag, names in zip(tags, found, strict=True) for name in names
        ]

    async def _views(self, keys: ViewKeys, after: Spot | None, most: int) -> list[View]:
        score, behind = (after.score, after.id) if after else (False, "")

        def asked(share: list[str]) -> ListView:
            return ListView(
                views=keys.names,
                newest=keys.newest,
                after_score=score,
                after_id=behind,
                limit=most,
                is_due=keys.is_due,
                tags=share,
            )

        tags = map(partition_tag, keys.partitions)
        replies = await ask_tags(self._calls, "list", tags, asked)
        return [view_in(answer) for reply in replies for answer in reply.head]


def _spot(after: Key | None) -> Spot | None:
    """A place of a listing as a place of its views; in the order of ids all scores are 0."""
    if after is None:
        return None
    return Spot(int(after[0]) if len(after) > 1 else 0, str(after[-1]))


def view_in(answer: list[Any]) -> View:
    number, has_more, *rest = answer
    spots = zip(map(int, rest[1::2]), rest[::2], strict=True)
    return View(number - 1, [Spot(*spot, number - 1) for spot in spots], has_more)


def merged(views: Sequence[View], *, newest: bool = False) -> list[Spot]:
    """Places in one order, up to the last that is certain to be next: of a view that has more,
    what follows is not known yet."""
    spots = sorted((spot for view in views for spot in view.spots), reverse=newest)
    ends = [view.spots[-1] for view in views if view.has_more]
    if not ends:
        return spots
    bound = max(ends) if newest else min(ends)
    return [spot for spot in spots if (spot >= bound if newest else spot <= bound)]
