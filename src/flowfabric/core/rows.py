"""What a step may read and write around a record: the rows of its partition.

A store that runs the reference gives the mechanisms this port; it is the whole of what they know
about storage. Writes become visible to later reads of the same step at once.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from flowfabric.core.events import LogEntry
from flowfabric.core.graph import Edge, Flow, Group
from flowfabric.core.journal import JournalEntry
from flowfabric.core.plan import Blob
from flowfabric.core.record import Record
from flowfabric.core.states import State
from flowfabric.core.transition import Transition


class Rows(Protocol):
    @property
    def now(self) -> int: ...

    def record(self, execution_id: str) -> Record | None: ...

    def flow(self, flow_id: str) -> Flow | None: ...

    def group(self, target: str) -> Group | None: ...

    def edge(self, flow_id: str, edge_id: str) -> Edge | None: ...

    def expect(self, members: Sequence[str]) -> None:
        """These members and their groups will be asked for next: load them in one go."""
        ...

    def members_in(
        self, flow_id: str, state: State, after: tuple[int, str] | None, limit: int
    ) -> Sequence[tuple[int, str]]:
        """(created_at, id) of a flow's members in one state, in that order and behind `after`,
        without reading any of them."""
        ...

    def tied_children(
        self, parent_id: str, after: tuple[int, str] | None, limit: int
    ) -> Sequence[tuple[int, str]]:
        """(created_at, id) of the live children that end with their parent, in that order and
        behind `after`, without reading any of them."""
        ...

    def outgoing(self, source: str, after: str, limit: int) -> Sequence[Edge]:
        """Edges that leave a member, by edge id, behind `after`."""
        ...

    def incoming(self, target: str, after: str, limit: int) -> Sequence[Edge]: ...

    def write(self, transition: Transition) -> None:
        """Write a changed record, with its views, ended attempt and log entry."""
        ...

    def put_blobs(self, execution_id: str, blobs: Mapping[Blob, bytes | None]) -> None: ...

    def put_documents(self, execution_id: str, documents: Mapping[str, bytes | None]) -> None: ...

    def drop_journal(self, execution_id: str, first: int) -> None: ...

    def add_steps(self, execution_id: str, steps: Sequence[JournalEntry]) -> None:
        """Journal those that are not journaled yet."""
        ...

    def copy_result(self, source: str, target: str) -> int:
        """Put the source's result over the target's input; the bytes copied, 0 without a result."""
        ...

    def put_edge(self, edge: Edge) -> None: ...

    def put_group(self, group: Group) -> None: ...

    def put_flow(self, flow: Flow) -> None: ...

    def log(self, entry: LogEntry) -> None: ...

    def count_sibling(self, disposition: str) -> None:
        """Count, for whoever watches, what became of a sibling that was to be cancelled."""
        ...
