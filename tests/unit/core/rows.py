"""The rows of one partition, as dicts: the port a step reads and writes through."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from flowfabric.core.events import LogEntry
from flowfabric.core.graph import Edge, Flow, Group
from flowfabric.core.journal import JournalEntry
from flowfabric.core.plan import Blob
from flowfabric.core.record import Attempt, Record
from flowfabric.core.states import State
from flowfabric.core.transition import Transition
from flowfabric.core.views import tied_of


class FakeRows:
    """Everything is visible at once and nothing is ever taken back."""

    def __init__(self, now: int, *records: Record) -> None:
        self.now = now
        self.records = {record.execution_id: record for record in records}
        self.flows: dict[str, Flow] = {}
        self.groups: dict[str, Group] = {}
        self.edges: dict[str, Edge] = {}
        self.blobs: dict[tuple[str, Blob], bytes] = {}
        self.documents: dict[tuple[str, str], bytes] = {}
        self.ended: list[tuple[str, Attempt]] = []
        self.entries: list[LogEntry] = []
        self.writes: list[Transition] = []
        self.dropped_journals: list[str] = []
        self.steps: dict[tuple[str, str, int], JournalEntry] = {}
        self.siblings: list[str] = []

    def record(self, execution_id: str) -> Record | None:
        return self.records.get(execution_id)

    def flow(self, flow_id: str) -> Flow | None:
        return self.flows.get(flow_id)

    def group(self, target: str) -> Group | None:
        return self.groups.get(target)

    def edge(self, _flow_id: str, edge_id: str) -> Edge | None:
        return self.edges.get(edge_id)

    def expect(self, members: Sequence[str]) -> None:
        """All rows are at hand."""

    def members_in(
        self, flow_id: str, state: State, after: tuple[int, str] | None, limit: int
    ) -> list[tuple[int, str]]:
        places = sorted(
            (record.created_at, record.execution_id)
            for record in self.records.values()
            if record.flow_id == flow_id and record.state == state
        )
        return [place for place in places if after is None or place > after][:limit]

    def tied_children(
        self, parent_id: str, after: tuple[int, str] | None, limit: int
    ) -> list[tuple[int, str]]:
        places = sorted(
            (record.created_at, record.execution_id)
            for record in self.records.values()
            if record.parent_id == parent_id and tied_of(record)
        )
        return [place for place in places if after is None or place > after][:limit]

    def outgoing(self, source: str, after: str, limit: int) -> Sequence[Edge]:
        return _page((edge for edge in self.edges.values() if edge.source == source), after, limit)

    def incoming(self, target: str, after: str, limit: int) -> Sequence[Edge]:
        return _page((edge for edge in self.edges.values() if edge.target == target), after, limit)

    def write(self, transition: Transition) -> None:
        after = transition.after
        self.records[after.execution_id] = after
        self.writes.append(transition)
        if transition.ended is not None:
            self.ended.append((after.execution_id, transition.ended))
        if transition.entry is not None:
            self.entries.append(transition.entry)

    def put_blobs(self, execution_id: str, blobs: Mapping[Blob, bytes | None]) -> None:
        for name, body in blobs.items():
            if body is None:
                self.blobs.pop((execution_id, name), None)
            else:
                self.blobs[execution_id, name] = body

    def put_documents(self, execution_id: str, documents: Mapping[str, bytes | None]) -> None:
        for name, body in documents.items():
            if body is None:
                self.documents.pop((execution_id, name), None)
            else:
                self.documents[execution_id, name] = body

    def drop_journal(self, execution_id: str, first: int) -> None:
        self.dropped_journals.append(execution_id)

    def add_steps(self, execution_id: str, steps: Sequence[JournalEntry]) -> None:
        for step in steps:
            self.steps.setdefault((execution_id, step.name, step.seq), step)

    def copy_result(self, source: str, target: str) -> int:
        result = self.blobs.get((source, "result"))
        if result is None:
            return 0
        self.blobs[target, "input"] = result
        return len(result)

    def put_edge(self, edge: Edge) -> None:
        created_at = edge.created_at or self.now
        self.edges[edge.edge_id] = msgspec.structs.replace(edge, created_at=created_at)

    def put_group(self, group: Group) -> None:
        self.groups[group.target] = group

    def put_flow(self, flow: Flow) -> None:
        self.flows[flow.flow_id] = flow

    def log(self, entry: LogEntry) -> None:
        self.entries.append(entry)

    def count_sibling(self, disposition: str) -> None:
        self.siblings.append(disposition)


def _page(edges: Iterable[Edge], after: str, limit: int) -> list[Edge]:
    behind = [edge for edge in edges if edge.edge_id > after]
    return sorted(behind, key=lambda edge: edge.edge_id)[:limit]
