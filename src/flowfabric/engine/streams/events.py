"""Subscriptions to the durable log: what happened, in order, from any position on.

A word of the log that this release does not know is passed on unchanged.
"""

from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping
from contextlib import closing
from typing import Any, Final, cast

from flowfabric.backend.types import EventFilter, EventPage, StoredEvent
from flowfabric.core.events import LogEntry
from flowfabric.core.ids import check_namespace
from flowfabric.core.pages import from_text, to_text
from flowfabric.core.plan import Family
from flowfabric.engine.checking import whole
from flowfabric.engine.deps import Deps
from flowfabric.engine.streams.followers import Follower, Interest, Watch
from flowfabric.engine.streams.log_reader import PAGE, LogReader
from flowfabric.errors import InvalidInput, StreamDisconnected
from flowfabric.operations import streams as declared
from flowfabric.operations.declaration import implements
from flowfabric.operations.events import (
    FAMILIES,
    BackpressureEvent,
    CompletionEvent,
    CorruptionEvent,
    Cursor,
    Event,
    EventQuery,
    EventScope,
    FlowEvent,
    LeaseEvent,
    OperatorEvent,
    SignalEvent,
)
from flowfabric.operations.streams import PRESENT
from flowfabric.operations.types import Page

# Words of the log that readers know by another name.
_OUTCOMES: Final[Mapping[str, str]] = {"failed": "failure"}
_EFFECTS: Final[Mapping[str, str]] = {
    "resume_condition_satisfied": "satisfied",
    "buffered_for_pending_waitpoint": "buffered",
}
_REVOKERS: Final[Mapping[str, str]] = {"reconciler": "reconciler", "backend": "backend"}


def events_of(stored: StoredEvent, wanted: frozenset[Family], before: bytes) -> Iterator[Event]:
    """One event per family asked for. Only the last carries the entry's own cursor, the others
    the position `before` it, so that resuming between them repeats and never loses one."""
    families = [family for family in stored.entry.families if family in wanted]
    for place, family in enumerate(families, start=1):
        cursor = to_text(stored.cursor if place == len(families) else before)
        try:
            yield _TYPED[family](stored.entry, cursor)
        except (LookupError, ValueError) as fault:
            at = f"{stored.entry.kind} at {stored.entry.at}"
            reason = f"log: {family}: {at} cannot be read: {fault}"
            yield CorruptionEvent(cursor=cursor, reason=reason)


def _completion(entry: LogEntry, cursor: str) -> Event:
    outcome = entry.details["outcome"]
    return CompletionEvent(
        cursor=cursor,
        execution_id=_needed(entry.execution_id, "execution_id"),
        flow_id=entry.flow_id,
        outcome=_OUTCOMES.get(outcome, outcome),
        at=entry.at,
    )


def _lease(entry: LogEntry, cursor: str) -> Event:
    known = _LEASE_FIELDS.get(entry.kind)
    return LeaseEvent(
        cursor=cursor,
        execution_id=_needed(entry.execution_id, "execution_id"),
        kind=entry.kind,
        at=entry.at,
        **(known(entry) if known else {}),
    )


def _held(entry: LogEntry) -> dict[str, Any]:
    return {
        "lease_id": entry.lease_id,
        "worker_instance_id": entry.worker_instance_id,
        "reason": entry.details.get("reason", ""),
    }


def _expired(entry: LogEntry) -> dict[str, Any]:
    return {
        "lease_id": entry.lease_id,
        "prev_owner": entry.worker_instance_id,
    }


def _reclaimed(entry: LogEntry) -> dict[str, Any]:
    return {
        "new_lease_id": entry.details.get("new_lease_id", ""),
        "new_owner": entry.worker_instance_id,
    }


def _revoked(entry: LogEntry) -> dict[str, Any]:
    revoker = _REVOKERS.get(entry.details.get("reason", ""), "operator")
    return {"lease_id": entry.lease_id, "revoked_by": revoker}


def _replayed(entry: LogEntry) -> dict[str, Any]:
    return {
        "replay_count": int(entry.details["replay_count"]),
        "replay_type": entry.details["replay_type"],
    }


_LEASE_FIELDS: Final[Mapping[str, Callable[[LogEntry], dict[str, Any]]]] = {
    "acquired": _held,
    "released": _held,
    "expired": _expired,
    "reclaimed": _reclaimed,
    "revoked": _revoked,
    "replay_initiated": _replayed,
}


def _signal(entry: LogEntry, cursor: str) -> Event:
    details = entry.details
    effect = details["effect"]
    return SignalEvent(
        cursor=cursor,
        execution_id=_needed(entry.execution_id, "execution_id"),
        signal_id=details["signal_id"],
        waitpoint_id=details.get("waitpoint_id", ""),
        source_identity=details.get("source_identity", ""),
        effect=_EFFECTS.get(effect, effect),
        at=entry.at,
    )


# What a replay tells as an operator's act; the lease family tells the rest.
_REPLAY_DETAILS: Final = ("branch", "groups_reset")


def _operator(entry: LogEntry, cursor: str) -> Event:
    event_type, details = entry.kind, entry.details
    if entry.kind == "replay_initiated":
        event_type = "replayed"
        details = {name: entry.details[name] for name in _REPLAY_DETAILS}
    elif entry.kind == "released":
        event_type = "parked"
        details = {"reason": entry.details["parked"], "detail": entry.details["detail"]}
    return OperatorEvent(
        cursor=cursor,
        execution_id=entry.execution_id,
        flow_id="" if _has_subject(entry) else _needed(entry.flow_id, "flow_id"),
        event_type=event_type,
        details=dict(details),
        at=entry.at,
    )


def _has_subject(entry: LogEntry) -> bool:
    """Whether the entry is about an execution or a budget, and so needs no flow."""
    return bool(entry.execution_id or entry.details.get("budget_id"))


def _flow(entry: LogEntry, cursor: str) -> Event:
    return FlowEvent(
        cursor=cursor,
        flow_id=_needed(entry.flow_id, "flow_id"),
        event=entry.kind,
        state=entry.details["state"],
        at=entry.at,
    )


_TYPED: Final[Mapping[Family, Callable[[LogEntry, str], Event]]] = {
    "completion": _completion,
    "lease": _lease,
    "signal": _signal,
    "operator": _operator,
    "flow": _flow,
}


def _needed(value: str, field: str) -> str:
    if not value:
        raise ValueError(f"{field} is missing")
    return value


MOST_READ: Final = 1_000
MOST_WAIT_MS: Final = 30_000

# Word of entries that were missed or cannot be read comes between the events. Neither ends a
# subscription; only a raised `StreamDisconnected` does.
Subscription = AsyncGenerator[Event, None]

_EVERYTHING: Final = EventScope()


class Events:
    """`searchable` are the tag keys this deployment keeps with its log entries."""

    def __init__(self, deps: Deps, searchable: frozenset[str] = frozenset()) -> None:
        self._deps = deps
        self._searchable = searchable
        self._reader = LogReader(deps.store.backend)

    async def subscribe(
        self,
        families: Collection[Family],
        scope: EventScope = _EVERYTHING,
        cursor: Cursor = "",
    ) -> Subscription:
        """Follow the log. An empty cursor is the position of this very call, `oldest` the first
        entry still kept, any other resumes strictly behind the event that carried it."""
        wanted = self._wanted(families, scope)
        position = await self._position(cursor)
        # A cursor of another store is refused here, not on the first event.
        await self._deps.store.backend.events(position, wanted, 1)
        return self._follow(self._reader.follow(position, Interest(wanted, scope.namespaces)))

    @implements(declared.Streams.read_events)
    async def read_events(
        self, asked: EventQuery = PRESENT, *, visible: frozenset[str] | None = None
    ) -> Page[Event]:
        """One page of the log. With nothing on it, wait until something is logged that was asked
        for, or until the time is up."""
        whole(asked.limit, "limit", 1, MOST_READ)
        whole(asked.wait_ms, "wait_ms", 0, MOST_WAIT_MS)
        scope = EventScope(
            namespace=asked.namespace, instance_tag=self._tag(asked.tag), namespaces=visible
        )
        wanted = self._wanted(_families(asked.families), scope)
        position = await self._position(asked.cursor)
        if not asked.wait_ms:
            page = await self._deps.store.backend.events(position, wanted, asked.limit)
        else:
            with closing(self._reader.follow(position, Interest(wanted, visible))) as follower:
                page = await follower.page(asked.limit, asked.wait_ms / 1_000)
        items = list(_items(page, wanted.families, position, visible))
        # The position behind the page takes in what was not shown.
        return Page(items=items, next_cursor=to_text(page.cursor))

    def watch(self, execution_id: str) -> Watch:
        """Wakes when something is logged about an execution, as soon as it is made."""
        return self._reader.watch(execution_id)

    @property
    def following(self) -> int:
        """How many follow the log in this process."""
        return self._reader.following

    def close(self) -> None:
        """End the reading for those who still follow."""
        self._reader.close()

    async def _position(self, cursor: Cursor) -> bytes:
        if not isinstance(cursor, str):
            raise InvalidInput("cursor: expected the text of an event, oldest, or nothing")
        if cursor in ("", "oldest"):
            return await self._deps.store.backend.cursor("oldest" if cursor else "now")
        return from_text(cursor)

    async def _follow(self, follower: Follower) -> Subscription:
        # Following begins with the first iteration: a subscription nobody iterates holds nothing.
        families, visible = follower.interest.wanted.families, follower.interest.visible
        with closing(follower):
            while True:
                position = follower.position
                page = await _page(follower)
                for item in _items(page, families, position, visible):
                    yield item

    def _tag(self, text: str) -> tuple[str, str] | None:
        key, found, value = text.partition("=")
        if text and (not found or key not in self._searchable):
            raise InvalidInput("tag: expected key=value, the key one of the searchable tags")
        return (key, value) if text else None

    def _wanted(self, families: Collection[Family], scope: EventScope) -> EventFilter:
        if not families or not set(families) <= set(FAMILIES):
            raise InvalidInput(f"families: expected some of {', '.join(FAMILIES)}")
        if scope.namespace:
            check_namespace(scope.namespace)
        if scope.instance_tag is not None and scope.instance_tag[0] not in self._searchable:
            raise InvalidInput("instance_tag: the key is not among the searchable tags")
        for partition in scope.partitions:
            whole(partition, "partitions", 0, self._deps.counts.flow - 1)
        return EventFilter(
            families=frozenset(families),
            namespace=scope.namespace,
            tag=scope.instance_tag,
            partitions=scope.partitions,
        )


async def _page(follower: Follower) -> EventPage:
    try:
        return await follower.page(PAGE)
    except Exception as fault:
        reason = f"reading the log: {fault}"
        raise StreamDisconnected(reason, cursor=to_text(follower.position)) from fault


def _families(text: str) -> frozenset[Family]:
    """Names that are not families are refused with all the others."""
    names = {one.strip() for one in text.split(",") if one.strip()}
    return cast(frozenset[Family], frozenset(names or FAMILIES))


def _items(
    page: EventPage,
    wanted: frozenset[Family],
    before: bytes,
    namespaces: frozenset[str] | None,
) -> Iterator[Event]:
    if page.missed:
        reason = "entries before the first one kept were missed"
        yield BackpressureEvent(cursor=to_text(before), reason=reason)
    for stored in page.events:
        if namespaces is None or stored.entry.namespace in namespaces:
            yield from events_of(stored, wanted, before)
        before = stored.cursor
