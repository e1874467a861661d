"""Mechanism `create`."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from flowfabric.backend.base import Answered
from flowfabric.backend.types import CreateAnswer, Created, Duplicate
from flowfabric.backend.valkey.calls import Calls, Reply
from flowfabric.backend.valkey.graph_rows import flow_of
from flowfabric.backend.valkey.keys import key_of_item
from flowfabric.backend.valkey.limit_upkeep import attach
from flowfabric.backend.valkey.packing import Args, decode, encode, record_at, row_of, static_rest
from flowfabric.backend.valkey.requests import CreateExecution, Shape
from flowfabric.core.graph import Flow
from flowfabric.core.new_execution import NewExecution, first_state
from flowfabric.core.plan import FlowRefused
from flowfabric.core.record import Record
from flowfabric.errors import Bug


class _Shape(msgspec.Struct, frozen=True):
    """What new executions have in common, and their static text but the id."""

    # Kept, because its identity names the shape.
    record: Record
    packed: bytes
    # What follows the id.
    static: str


_MOST_SHAPES: Final = 256
_Terms = tuple[int, int, int, int, bool]
_shapes: Final[dict[tuple[int, _Terms], _Shape]] = {}


class CreateMechanism:
    _calls: Calls

    async def create(self, items: Sequence[NewExecution]) -> list[Answered[CreateAnswer]]:
        answers = await self._calls.batches(
            "create", items, key_of_item, self._pack_new, self._read_created
        )
        charged = [
            new
            for new, answer in zip(items, answers, strict=True)
            if new.record.budget_ids and _is_stored(new, answer)
        ]
        if charged:
            await attach(self._calls, charged)
        return answers

    def _pack_new(self, new: NewExecution, args: Args) -> CreateExecution:
        # Submissions of one kind share a record and these terms.
        terms = (
            new.dedup_window_ms,
            new.delay_until,
            new.deadline_at,
            new.deadline_in,
            new.has_dependencies,
        )
        shape = _shapes.get((id(new.record), terms))
        if shape is None:
            shape = _new_shape(new, terms, self._calls.searchable)
        return CreateExecution(
            id=new.execution_id,
            shape_argument=args.put_once(shape.packed),
            static=f'["{new.execution_id}",{shape.static}',
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
                parent = record_at(reply.bodies, answer[2], answer[3]) if len(answer) > 2 else None
                return FlowRefused(_flow(new, answer[1], reply), parent)
            case other:
                raise Bug(f"create: {other!r}")


def _flow(new: NewExecution, number: int, reply: Reply) -> Flow | None:
    return flow_of(new.record.flow_id, decode(reply.bodies[number])) if number else None


def _is_stored(new: NewExecution, answer: Answered[CreateAnswer]) -> bool:
    """By this call, or by one before it whose answer was lost."""
    return isinstance(answer, (Created, Duplicate)) and answer.execution_id == new.execution_id


def _new_shape(new: NewExecution, terms: _Terms, searchable: frozenset[str]) -> _Shape:
    """Kept for further ones, unless the execution has something of its own."""
    record = new.record
    shape = _Shape(record, encode(pack_shape(new, searchable)), static_rest(record))
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
