"""Mechanism `create`."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from flowfabric.backend.base import Answered
from flowfabric.backend.types import CreateAnswer, Created, Duplicate
from flowfabric.backend.valkey.calls import Calls, Reply
from flowfabric.backend.valkey.graph_rows import flow_of
from flowfabric.backend.valkey.keys import execution_partition_key
from flowfabric.backend.valkey.limit_upkeep import attach
from flowfabric.backend.valkey.packing import Args, decode, encode, row_of, static_rest, static_text
from flowfabric.backend.valkey.requests import CreateExecution, Shape
from flowfabric.core.graph import Flow
from flowfabric.core.new_execution import NewExecution, first_state
from flowfabric.core.plan import FlowRefused
from flowfabric.core.record import Record
from flowfabric.errors import Bug


class _Shape(msgspec.Struct, frozen=True):
    """What new executions have in common, and most of their static text."""

    # Kept, because its identity names the shape.
    record: Record
    packed: bytes
    static: str


_MOST_SHAPES: Final = 256
_shapes: Final[dict[tuple[int, tuple[Any, ...]], _Shape]] = {}


class CreateMechanism:
    _calls: Calls

    async def create(self, items: Sequence[NewExecution]) -> list[Answered[CreateAnswer]]:
        answers = await self._calls.batches(
            "create", items, _key, self._pack_new, self._read_created
        )
        charged = [
            new
            for place, new in enumerate(items)
            if new.record.budget_ids and _is_stored(new, answers[place])
        ]
        if charged:
            await attach(self._calls, charged)
        return answers

    def _pack_new(self, new: NewExecution, args: Args) -> CreateExecution:
        shape = _shape_of(new, self._calls.searchable)
        return CreateExecution(
            id=new.execution_id,
            shape_argument=args.put_once(shape.packed),
            static=static_text(new.execution_id, shape.static),
            input_argument=args.put(new.input) if new.input else 0,
            idempotency_key=new.record.idempotency_key,
        )

    def _read_created(self, new: NewExecution, answer: Any, reply: Reply) -> CreateAnswer:
        if answer is True:
            return Created(new.execution_id, *first_state(new, reply.now))
        match answer[0]:
            case "duplicate":
                return Duplicate(answer[1])
            case "refused":
                return FlowRefused(_flow(new, answer[1], reply))
            case other:
                raise Bug(f"create: {other!r}")


def _flow(new: NewExecution, number: int, reply: Reply) -> Flow | None:
    return flow_of(new.record.flow_id, decode(reply.bodies[number])) if number else None


def _is_stored(new: NewExecution, answer: Answered[CreateAnswer]) -> bool:
    """By this call, or by one before it whose answer was lost."""
    return isinstance(answer, (Created, Duplicate)) and answer.execution_id == new.execution_id


def _key(new: NewExecution) -> str:
    return execution_partition_key(new.execution_id)


def _shape_of(new: NewExecution, searchable: frozenset[str]) -> _Shape:
    """Made once for all new executions that share a record and its terms, as those submitted
    alike do unless they have something of their own."""
    record, terms = new.record, _terms(new)
    shape = _shapes.get((id(record), terms))
    if shape is not None:
        return shape
    packed = encode(pack_shape(new, searchable))
    shape = _Shape(record, packed, static_rest(record))
    if not (record.flow_id or record.idempotency_key or record.tags):
        if len(_shapes) >= _MOST_SHAPES:
            _shapes.clear()
        _shapes[id(record), terms] = shape
    return shape


def pack_shape(new: NewExecution, searchable: frozenset[str]) -> Shape:
    """What a new execution has in common with others of its kind."""
    return Shape(
        record=row_of(new.record, searchable),
        dedup_window_ms=new.dedup_window_ms,
        delay_until=new.delay_until,
        deadline_at=new.deadline_at,
        deadline_in=new.deadline_in,
        has_dependencies=new.has_dependencies,
        fairness_key=new.record.fairness_key,
    )


def _terms(new: NewExecution) -> tuple[Any, ...]:
    return (
        new.dedup_window_ms,
        new.delay_until,
        new.deadline_at,
        new.deadline_in,
        new.has_dependencies,
    )
