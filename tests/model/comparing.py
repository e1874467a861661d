"""Everything a store shows, as one picture, so that two stores can be held against each other."""

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Final

from flowfabric.backend.types import EventFilter, Filter, FrameRange, ListRequest, With
from flowfabric.core.events import LogEntry
from flowfabric.core.record import Record
from tests.model.sides import COUNTS, Pair, Side, agree

NAMESPACES: Final = ("default", "other")
LANES: Final = ("default", "gpu")
_BESIDE: Final = frozenset[With](
    {"input", "result", "attempts", "history", "upstream_results", "group"}
)
_PAGE: Final = 200


class Known:
    """What was ever made and cannot be listed: flows, streams and journals by their owner."""

    def __init__(self) -> None:
        self.flows: set[str] = set()
        self.streams: set[tuple[str, int]] = set()
        self.journals: set[str] = set()


async def compare(pair: Pair, known: Known) -> None:
    """Both stores show the same, and neither contradicts its own records."""
    reference, subject = [await picture(side, known) for side in pair.sides]
    for aspect, expected in reference.items():
        agree(aspect, expected, subject[aspect])
    for side in pair.sides:
        agree(f"discrepancies of the {side.name}", [], await side.backend.verify())


async def picture(side: Side, known: Known) -> dict[str, object]:
    """Everything is read at once: a store answers many reads faster than one after the other."""
    pages = await asyncio.gather(*(walk(side, Filter(namespace=name)) for name in NAMESPACES))
    records = [record for page in pages for record in page]
    ids = [record.execution_id for record in records]
    backend = side.backend
    lanes = [(namespace, lane) for namespace in NAMESPACES for lane in LANES]
    streams, journals = sorted(known.streams), sorted(known.journals)
    aspects: dict[str, Awaitable[object]] = {
        "records": backend.read(ids, _BESIDE, dict.fromkeys(ids, ("*",))),
        "counts": asyncio.gather(*(backend.count(*lane) for lane in lanes)),
        "queues": asyncio.gather(*(backend.queues(*lane) for lane in lanes)),
        "order": asyncio.gather(*(_ids(side, view) for view in _lane_views(records))),
        "due": backend.due(_PAGE),
        "flows": backend.flows(sorted(known.flows)),
        "flows by age": backend.flows_by_age(None, _PAGE),
        "workers": asyncio.gather(*(backend.workers(name, "", _PAGE) for name in NAMESPACES)),
        "config": backend.config_list("", "", _PAGE),
        "frames": backend.frames([FrameRange(*at, limit=_PAGE) for at in streams]),
        "summaries": asyncio.gather(*(backend.summary(*at) for at in streams)),
        "journals": asyncio.gather(*(backend.journal_read(at, 0, _PAGE) for at in journals)),
        "events": new_events(side),
    }
    seen = dict(zip(aspects, await asyncio.gather(*aspects.values()), strict=True))
    return {"listing": ids, **seen}


def _lane_views(records: Iterable[Record]) -> list[Filter]:
    """Every (namespace, lane, state) that some record is in, each a view with an order."""
    places = {
        (record.namespace, record.lane, record.state, _listed_reason(record)) for record in records
    }
    return [
        Filter(namespace=namespace, lane=lane, state=state, reason=reason)
        for namespace, lane, state, reason in sorted(places)
    ]


def _listed_reason(record: Record) -> str:
    return record.reason if record.state == "blocked" else ""


async def _ids(side: Side, wanted: Filter) -> list[str]:
    page = await side.backend.search(ListRequest(filter=wanted, order="view", limit=_PAGE))
    return [record.execution_id for record in page.records]


async def walk(side: Side, wanted: Filter, limit: int = _PAGE) -> list[Record]:
    """All records a filter shows, page by page, newest first."""
    found: list[Record] = []
    cursor = ""
    while True:
        asked = ListRequest(filter=wanted, cursor=cursor, limit=limit)
        page = await side.backend.search(asked)
        found.extend(page.records)
        cursor = page.next_cursor
        if not cursor:
            return found


async def new_events(side: Side) -> dict[int, list[LogEntry]]:
    """What was logged since the last picture, per partition: across them a store may differ."""
    found: dict[int, list[LogEntry]] = {}
    while True:
        page = await side.backend.events(side.cursor, EventFilter(), _PAGE)
        for event in page.events:
            found.setdefault(_partition(event.entry), []).append(event.entry)
        side.cursor = page.cursor
        if not page.events:
            return found


def _partition(entry: LogEntry) -> int:
    if entry.flow_id:
        return COUNTS.of_flow(entry.flow_id)
    return int(entry.execution_id.removeprefix("{fp:").partition("}")[0])
