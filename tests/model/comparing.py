"""Everything a store shows, as one picture, so that two stores can be held against each other."""

from collections.abc import Iterable
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
    records = [record for name in NAMESPACES for record in await walk(side, Filter(namespace=name))]
    ids = [record.execution_id for record in records]
    everything = dict.fromkeys(ids, ("*",))
    backend = side.backend
    lanes = [(namespace, lane) for namespace in NAMESPACES for lane in LANES]
    return {
        "listing": ids,
        "records": dict(zip(ids, await backend.read(ids, _BESIDE, everything), strict=True)),
        "counts": {lane: await backend.count(*lane) for lane in lanes},
        "queues": {lane: await backend.queues(*lane) for lane in lanes},
        "order": {key: await _ids(side, filter) for key, filter in _lane_views(records)},
        "due": await backend.due(_PAGE),
        "flows": await backend.flows(sorted(known.flows)),
        "flows by age": await backend.flows_by_age(None, _PAGE),
        "workers": {name: await backend.workers(name, "", _PAGE) for name in NAMESPACES},
        "config": await backend.config_list("", "", _PAGE),
        "frames": await backend.frames(
            [FrameRange(*at, limit=_PAGE) for at in sorted(known.streams)]
        ),
        "summaries": {at: await backend.summary(*at) for at in sorted(known.streams)},
        "journals": {at: await backend.journal_read(at, 0, _PAGE) for at in sorted(known.journals)},
        "events": await _new_events(side),
    }


def _lane_views(records: Iterable[Record]) -> list[tuple[tuple[str, ...], Filter]]:
    """Every (namespace, lane, state) that some record is in, each a view with an order."""
    places = {
        (record.namespace, record.lane, record.state, _listed_reason(record)) for record in records
    }
    return [
        (place, Filter(namespace=place[0], lane=place[1], state=place[2], reason=place[3]))
        for place in sorted(places)
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


async def _new_events(side: Side) -> dict[int, list[LogEntry]]:
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
