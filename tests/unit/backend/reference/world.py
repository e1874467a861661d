"""Tables in memory and a clock: what a mechanism needs to be tried by itself."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from flowfabric.backend.memory import MemoryTables
from flowfabric.backend.reference.claims import start_apply, start_claim
from flowfabric.backend.reference.creation import start_create
from flowfabric.backend.reference.flows import start_create_graph
from flowfabric.backend.reference.tables import RECORDS, Changes
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.verification import verify
from flowfabric.backend.reference.work import Work, perform
from flowfabric.backend.types import ClaimAnswer, ClaimRequest, Discrepancy
from flowfabric.core.graph import Edge, Flow, Group
from flowfabric.core.new_execution import NewExecution, NewGraph
from flowfabric.core.plan import Fence, Plan
from flowfabric.core.record import Record
from flowfabric.core.rules import attempts
from flowfabric.errors import FlowFabricError
from tests.clock import VirtualClock

I = TypeVar("I")  # noqa: E741
A = TypeVar("A")
T = TypeVar("T")

LEASE_MS = 30_000
FLOW = "00000000-0000-4000-8000-00000000f10e"
Start = Callable[[Transaction, Sequence[I]], Callable[[I], A]]


def id_of(number: int, partition: int = 0) -> str:
    return f"{{fp:{partition}}}:{UUID(int=number)}"


def fence_of(record: Record) -> Fence:
    return Fence(record.lease_id, record.lease_epoch, record.attempt_id)


class StrictTables(MemoryTables):
    """Refuses changes that are wrong about what is stored: other stores build on that."""

    def write(self, changes: Changes) -> None:
        for put in changes.puts.get(RECORDS, ()):
            assert put.before == self.get(RECORDS, put.key), f"{put.key}: not what was stored"
        super().write(changes)


class World:
    def __init__(self, searchable: frozenset[str] = frozenset()) -> None:
        self.clock = VirtualClock()
        self.tables = StrictTables(searchable)
        self.topics: set[str] = set()
        self._made = 0

    def begin(self) -> Transaction:
        return Transaction(self.tables, self.clock(), self.tables.searchable)

    def answers(self, start: Start[I, A], *items: I) -> list[A | FlowFabricError]:
        """Do one batch in a transaction of its own."""
        tx = self.begin()
        answered = perform(tx, Work("test", start, items))
        tx.flush()
        self.topics = tx.topics
        return answered

    def do(self, start: Start[I, A], item: I) -> A:
        (answer,) = self.answers(start, item)
        if isinstance(answer, FlowFabricError):
            raise answer
        return answer

    def read(self, read: Callable[..., T], *values: Any) -> T:
        return read(self.begin(), *values)

    def verify(self) -> list[Discrepancy]:
        return verify(self.begin())

    def record(self, execution_id: str) -> Record:
        record = self.begin().record(execution_id)
        assert record is not None
        return record

    # ---- what most tests do first

    def new_execution(self, partition: int = 0, **fields: Any) -> NewExecution:
        self._made += 1
        extra = {name: fields.pop(name) for name in tuple(fields) if name in _EXTRA}
        names = {"namespace": "default", "lane": "main"} | fields
        record = Record(execution_id="", **names)
        return NewExecution(execution_id=id_of(self._made, partition), record=record, **extra)

    def create(self, partition: int = 0, **fields: Any) -> str:
        new = self.new_execution(partition, **fields)
        self.do(start_create, new)
        return new.execution_id

    def graph(self, *links: tuple[int, int], members: int, **flow: Any) -> list[str]:
        """A flow of members and edges between them, given by position."""
        targets = {target for _, target in links}
        executions = [
            self.new_execution(flow_id=FLOW, has_dependencies=position in targets)
            for position in range(members)
        ]
        ids = [new.execution_id for new in executions]
        edges = tuple(
            Edge(
                edge_id=f"e{number}",
                flow_id=FLOW,
                source=ids[source],
                target=ids[target],
                state="open",
            )
            for number, (source, target) in enumerate(links)
        )
        groups = tuple(
            Group(target=ids[target], flow_id=FLOW, n=sum(end == target for _, end in links))
            for target in sorted(targets)
        )
        header = Flow(flow_id=FLOW, namespace="default", **flow)
        graph = NewGraph(flow=header, members=tuple(executions), edges=edges, groups=groups)
        self.do(start_create_graph, graph)
        return ids

    def claim(self, n: int = 1, lane: str = "main", namespace: str = "default") -> list[Record]:
        stamp = f"{self.clock()}-{len(self.tables.log_rows(0, 10**6))}"
        request = ClaimRequest(
            worker_id="pool",
            worker_instance_id="pool-1",
            namespace=namespace,
            lanes=(lane,),
            sets=("-",),
            ids=tuple((f"lease-{stamp}-{i}", f"attempt-{stamp}-{i}") for i in range(n)),
            lease_for=LEASE_MS,
        )
        claimed: ClaimAnswer = self.do(start_claim, request)
        return [offer.record for offer in claimed.offers]

    def started(self, **fields: Any) -> Record:
        """A fresh execution under a lease; nothing else may wait in its lane."""
        self.create(**fields)
        (record,) = self.claim()
        return record

    def apply(self, plan: Plan) -> Record:
        self.do(start_apply, plan)
        return self.record(plan.target)

    def complete(self, record: Record, result: bytes | None = None) -> Record:
        fence = fence_of(record)
        return self.apply(attempts.complete(record.execution_id, fence, result, "json", "op"))

    def finish(self, **fields: Any) -> Record:
        return self.complete(self.started(**fields))


_EXTRA = frozenset(
    {"input", "dedup_window_ms", "delay_until", "deadline_at", "deadline_in", "has_dependencies"}
)
