"""New executions and graphs: their first record, their idempotency keys, the chunks of a graph.

A graph that is too large for one write is sent in chunks, so that nothing starts before all of it
is stored. A member travels with its inbound edges, and members that have none come last: until
they are there nobody can run. Very many edges of one member go on in chunks of their own; its
group counts those that are still to come as staged.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from flowfabric.core.graph import Edge, Flow, Group
from flowfabric.core.record import Record
from flowfabric.core.states import State
from flowfabric.core.transition import changed_record
from flowfabric.errors import Conflict

# Each further execution of one fairness key stands this far behind the one before it.
FAIR_STEP_MS: Final = 1_000


class NewExecution(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One execution to create: its id, a record without id and instants, which those submitted
    alike may share, and what its instants become."""

    execution_id: str
    record: Record
    input: bytes = b""
    dedup_window_ms: int = 0
    delay_until: int = 0
    deadline_at: int = 0
    deadline_in: int = 0
    # A member with inbound edges waits for them before anything else.
    has_dependencies: bool = False


class NewGraph(msgspec.Struct, frozen=True, kw_only=True):
    """A whole graph, or one chunk of it; members that have no inbound edges come last. The first
    chunk is as a rule the one that a store sees first."""

    flow: Flow
    members: tuple[NewExecution, ...]
    edges: tuple[Edge, ...] = ()
    groups: tuple[Group, ...] = ()
    is_first: bool = True
    is_last: bool = True


def rank_shift_of(last_time: int, now: int) -> int:
    """How far behind its age a record of a flooding fairness key stands."""
    return max(0, last_time + FAIR_STEP_MS - now) if last_time else 0


def first_state(new: NewExecution, now: int) -> tuple[State, str]:
    """The state of the new record, and the reason for it."""
    if new.has_dependencies:
        return "blocked", "dependencies"
    return ("delayed", "delay") if new.delay_until > now else ("waiting", "")


def initial_record(new: NewExecution, now: int, rank_shift: int) -> Record:
    """The record as the creating step writes it."""
    record = new.record
    changes: dict[str, Any] = {
        "created_at": now,
        "moved_at": now,
        "rank_shift": rank_shift,
        "deadline_at": _deadline(new, now),
        "next": "first",
    }
    changes["state"], changes["reason"] = first_state(new, now)
    if new.delay_until > now:
        changes["wake_at"] = new.delay_until
    # Others may be made from the same record: whoever changes the tags of one changes no other's.
    tags = dict(record.tags)
    blank = msgspec.structs.replace(
        record, execution_id=new.execution_id, created_at=now, version=0, tags=tags
    )
    return changed_record(blank, changes, now)


def _deadline(new: NewExecution, now: int) -> int:
    """The earlier of the instant and the duration; one that has passed already is kept."""
    by_policy = now + new.deadline_in if new.deadline_in else 0
    given = [instant for instant in (new.deadline_at, by_policy) if instant]
    return min(given, default=0)


# ---- idempotency keys

# How the name of a scope begins.
IN_FLOW: Final = "flow:"
IN_NAMESPACE: Final = "namespace:"


def difference(new: NewExecution, found: Record, found_input: bytes) -> Conflict | None:
    """Why a key, or an id, that is known stands for something else than what is submitted now."""
    asked = new.record
    has_key = bool(asked.idempotency_key) and found.idempotency_key == asked.idempotency_key
    name = "idempotency_key" if has_key else "execution_id"
    if found.namespace != asked.namespace:
        return Conflict(f"{name}: it is in use")
    if found.kind != asked.kind:
        return Conflict(f"{name}: it was used for another execution_kind")
    # What members get as input may come from others of their flow.
    if has_key and not asked.flow_id and found_input != new.input:
        return Conflict(f"{name}: it was used with another input_payload")
    return None


class KeyEntry(msgspec.Struct, frozen=True):
    """Which execution a key stands for, and until when."""

    execution_id: str
    expires_at: int


def scoped_key(record: Record) -> tuple[str, str]:
    """The scope of the record's key, and the key: a member's is unique in its flow, any other in
    its namespace."""
    scope = IN_FLOW + record.flow_id if record.flow_id else IN_NAMESPACE + record.namespace
    return scope, record.idempotency_key


def known_execution(entry: KeyEntry | None, now: int) -> str:
    """The execution that the key stands for now; empty when it is free."""
    return entry.execution_id if entry is not None and entry.expires_at > now else ""


def new_entry(new: NewExecution, now: int) -> KeyEntry | None:
    """What to remember of a new execution's key; None when it has none, or none that lasts."""
    if not new.record.idempotency_key or new.dedup_window_ms <= 0:
        return None
    return KeyEntry(new.execution_id, now + new.dedup_window_ms)


_replace = msgspec.structs.replace


# ---- chunks of a graph


class Size(msgspec.Struct, frozen=True):
    """How much a step may write."""

    members: int
    edges: int
    bytes: int


# A submit that has sent nothing for so long will not go on.
ABANDONED_AFTER_MS: Final = 600_000
ONE_STEP: Final = Size(1_000, 5_000, 8 * 1024 * 1024)
# Smaller than need be: no step of a large graph is to hold up everybody else for long.
CHUNK: Final = Size(50, 125, 1024 * 1024)


class WholeGraph(msgspec.Struct, frozen=True):
    """A checked graph: its members, the edges into each, and the groups of those that have any."""

    flow: Flow
    members: tuple[NewExecution, ...]
    inbound: Mapping[str, Sequence[Edge]]
    groups: Mapping[str, Group]


def chunks_of(
    graph: WholeGraph, one_step: Size = ONE_STEP, chunk: Size = CHUNK
) -> Iterator[NewGraph]:
    """The graph as steps, to be done in this order."""
    edges = sum(len(inbound) for inbound in graph.inbound.values())
    size = sum(len(member.input) for member in graph.members)
    whole = Size(len(graph.members), edges, size)
    if _fits(whole, one_step):
        return iter([_in_one(graph)])
    chunks = enumerate(_in_chunks(graph, chunk))
    return (_replace(one, is_first=not number) for number, one in chunks)


def _fits(size: Size, limit: Size) -> bool:
    return size.members <= limit.members and size.edges <= limit.edges and size.bytes <= limit.bytes


def _in_one(graph: WholeGraph) -> NewGraph:
    return NewGraph(
        flow=graph.flow,
        members=graph.members,
        edges=tuple(edge for inbound in graph.inbound.values() for edge in inbound),
        groups=tuple(graph.groups.values()),
    )


class _Chunk:
    """A step that is being filled."""

    def __init__(self, flow: Flow, limit: Size) -> None:
        self._flow = flow
        self._limit = limit
        self._members: list[NewExecution] = []
        self._edges: list[Edge] = []
        self._groups: list[Group] = []
        self._bytes = 0

    def has_room(self, member: NewExecution, edges: int) -> bool:
        size = Size(
            len(self._members) + 1, len(self._edges) + edges, self._bytes + len(member.input)
        )
        return not self._members or _fits(size, self._limit)

    def add(self, member: NewExecution, edges: Sequence[Edge], group: Group | None) -> None:
        self._members.append(member)
        self._edges += edges
        self._bytes += len(member.input)
        if group is not None:
            self._groups.append(group)

    def as_graph(self, *, is_last: bool = False) -> NewGraph:
        return NewGraph(
            flow=self._flow,
            members=tuple(self._members),
            edges=tuple(self._edges),
            groups=tuple(self._groups),
            is_last=is_last,
        )


def _in_chunks(graph: WholeGraph, limit: Size) -> Iterator[NewGraph]:
    flow = _replace(graph.flow, incomplete=True)
    waiting = [member for member in graph.members if member.execution_id in graph.inbound]
    roots = [member for member in graph.members if member.execution_id not in graph.inbound]
    chunk = _Chunk(flow, limit)
    for member in (*waiting, *roots):
        own = member.execution_id
        inbound = graph.inbound.get(own, ())
        first, rest = inbound[: limit.edges], inbound[limit.edges :]
        if not chunk.has_room(member, len(first)):
            yield chunk.as_graph()
            chunk = _Chunk(flow, limit)
        group = graph.groups.get(own)
        if group is not None and rest:
            group = _replace(group, n=len(first), staged=len(rest))
        chunk.add(member, first, group)
        if rest:
            yield chunk.as_graph()
            chunk = _Chunk(flow, limit)
            yield from _edges_alone(flow, rest, limit.edges)
    yield chunk.as_graph(is_last=True)


def _edges_alone(flow: Flow, edges: Sequence[Edge], most: int) -> Iterator[NewGraph]:
    for start in range(0, len(edges), most):
        yield NewGraph(
            flow=flow, members=(), edges=tuple(edges[start : start + most]), is_last=False
        )
