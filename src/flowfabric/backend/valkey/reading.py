"""Mechanisms `read`, `due`, `count` and `queues`."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from flowfabric.backend.types import (
    NO_DOCUMENTS,
    ConfigDocument,
    DuePage,
    Named,
    Queue,
    Seen,
    With,
)
from flowfabric.backend.valkey.calls import Calls, Reply, side_by_side
from flowfabric.backend.valkey.fanning import ask_all
from flowfabric.backend.valkey.graph_packing import upstreams_of
from flowfabric.backend.valkey.graph_rows import edge_of, flow_of, group_or_none
from flowfabric.backend.valkey.keys import CONFIG, execution_partition_key, lane_key
from flowfabric.backend.valkey.packing import (
    attempt_from,
    decode,
    document_from,
    entries_of,
    record_from,
)
from flowfabric.backend.valkey.requests import CountLane, FindDue, OfLane, ReadRecords
from flowfabric.core.documents import Document
from flowfabric.core.events import history_of
from flowfabric.core.record import Record

_HISTORY: Final = 1_000
_PER_CALL: Final = 200


class ReadMechanism:
    _calls: Calls

    async def read(
        self, ids: Sequence[str], include: frozenset[With], documents: Named = NO_DOCUMENTS
    ) -> list[Seen | None]:
        wanted = dict.fromkeys(include, True)
        answers: list[Seen | None] = [None] * len(ids)

        async def run(places: Sequence[int]) -> None:
            named = [sorted(documents.get(ids[place], ())) or False for place in places]
            items = [(ids[place], names) for place, names in zip(places, named, strict=True)]
            key = execution_partition_key(ids[places[0]])
            reply = await self._calls.run("read", key, ReadRecords(items, wanted))
            for place, answer in zip(places, reply.head, strict=True):
                answers[place] = _seen(answer, reply, include) if answer else None

        await side_by_side(run, self._calls.parts(ids, execution_partition_key, _PER_CALL))
        return answers

    async def due(
        self,
        limit: int,
        after: tuple[int, str] | None = None,
        partitions: frozenset[int] = frozenset(),
    ) -> DuePage:
        tags = [f"{{fp:{one}}}" for one in sorted(partitions)] or False
        due_at, behind = after or (False, "")
        reply = await self._calls.run("due", CONFIG, FindDue(limit, due_at, behind, tags))
        return self._due_page(reply)

    def _due_page(self, reply: Reply) -> DuePage:
        records, flows, budgets, config, next_due, next_id = reply.head
        found = [_due_record(one, reply) for one in records]
        return DuePage(
            tuple(record for record, _ in found),
            tuple(flow_of(*one) for one in flows),
            reply.now,
            (next_due, next_id) if next_id else None,
            {record.execution_id: documents for record, documents in found if documents},
            tuple((int(at), str(budget_id)) for at, budget_id, _ in budgets),
            config_due(config, reply),
        )

    async def count(self, namespace: str, lane: str) -> dict[str, int]:
        index = self._calls.index_partitions(range(self._calls.counts.flow))
        found: Counter[str] = Counter()
        for reply in await ask_all(
            self._calls, "count", index, lambda share: CountLane(namespace, lane, share)
        ):
            found.update(dict(reply.head))
        return {state: count for state, count in found.items() if count}

    async def queues(self, namespace: str, lane: str) -> list[Queue]:
        reply = await self._calls.run("queues", lane_key(namespace, lane), OfLane(namespace, lane))
        return sorted(
            (Queue(req_set, depth, int(best)) for req_set, depth, best in reply.head),
            key=lambda queue: queue.req_set,
        )


def config_due(found: list[Any], reply: Reply) -> tuple[ConfigDocument, ...]:
    return tuple(
        ConfigDocument(name, version, reply.bodies[body], at) for name, version, at, body in found
    )


def _documents(flat: list[Any], reply: Reply) -> dict[str, Document]:
    names = dict(zip(flat[::2], flat[1::2], strict=True))
    return {name: document_from(reply.bodies[names[name]]) for name in sorted(names)}


def _due_record(one: list[Any], reply: Reply) -> tuple[Record, dict[str, Document]]:
    row, static, documents = one
    record = record_from(reply.bodies[row], reply.bodies[static])
    return record, _documents(documents, reply)


def _seen(answer: list[Any], reply: Reply, include: frozenset[With]) -> Seen:
    row, static, body, result, ended, kept, documents, upstreams, group, incoming = answer
    record = record_from(reply.bodies[row], reply.bodies[static])
    attempts = [attempt_from(reply.bodies[one]) for one in ended]
    told = (entry for one in kept for entry in entries_of(decode(reply.bodies[one])))
    every = (*attempts, record.attempt) if record.attempt else tuple(attempts)
    return Seen(
        record=record,
        now=reply.now,
        input=reply.body(body),
        result=reply.body(result),
        attempts=every if "attempts" in include else (),
        history=tuple(history_of(record, attempts, told)[-_HISTORY:])
        if "history" in include
        else (),
        documents=_documents(documents, reply),
        upstreams=upstreams_of(upstreams, reply),
        group=group_or_none(record.execution_id, group),
        incoming=tuple(edge_of(record.flow_id, one) for one in incoming or ()),
    )
