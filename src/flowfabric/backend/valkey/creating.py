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
from flowfabric.backend.valkey.requests import NewExecution, Shape
from flowfabric.core.birth import Birth, first_state
from flowfabric.core.flow_plan import FlowRefused
from flowfabric.core.graph import Flow
from flowfabric.core.record import Record
from flowfabric.errors import Bug


class _Shape(msgspec.Struct, frozen=True):
    """What births have in common, and most of their static text."""

    # Held, because its identity names the shape.
    record: Record
    packed: bytes
    static: str


_MOST_SHAPES: Final = 256
_shapes: Final[dict[tuple[int, tuple[Any, ...]], _Shape]] = {}


class CreateMechanism:
    _calls: Calls

    async def create(self, items: Sequence[Birth]) -> list[Answered[CreateAnswer]]:
        answers = await self._calls.batches(
            "create", items, _key, self._pack_birth, self._read_birth
        )
        charged = [
            birth
            for place, birth in enumerate(items)
            if birth.record.budget_ids and _is_stored(birth, answers[place])
        ]
        if charged:
            await attach(self._calls, charged)
        return answers

    def _pack_birth(self, birth: Birth, args: Args) -> NewExecution:
        shape = _shape_of(birth, self._calls.searchable)
        return NewExecution(
            id=birth.execution_id,
            shape_argument=args.put_once(shape.packed),
            static=static_text(birth.execution_id, shape.static),
            input_argument=args.put(birth.input) if birth.input else 0,
            idempotency_key=birth.record.idempotency_key,
        )

    def _read_birth(self, birth: Birth, answer: Any, reply: Reply) -> CreateAnswer:
        if answer is True:
            return Created(birth.execution_id, *first_state(birth, reply.now))
        match answer[0]:
            case "duplicate":
                return Duplicate(answer[1])
            case "refused":
                return FlowRefused(_flow(birth, answer[1], reply))
            case other:
                raise Bug(f"create: {other!r}")


def _flow(birth: Birth, number: int, reply: Reply) -> Flow | None:
    return flow_of(birth.record.flow_id, decode(reply.bodies[number])) if number else None


def _is_stored(birth: Birth, answer: Answered[CreateAnswer]) -> bool:
    """By this call, or by one before it whose answer was lost."""
    return isinstance(answer, (Created, Duplicate)) and answer.execution_id == birth.execution_id


def _key(birth: Birth) -> str:
    return execution_partition_key(birth.execution_id)


def _shape_of(birth: Birth, searchable: frozenset[str]) -> _Shape:
    """Made once for all births that share a record and its terms, as those submitted alike do
    unless they have something of their own."""
    record, terms = birth.record, _terms(birth)
    shape = _shapes.get((id(record), terms))
    if shape is not None:
        return shape
    packed = encode(pack_shape(birth, searchable))
    shape = _Shape(record, packed, static_rest(record))
    if not (record.flow_id or record.idempotency_key or record.tags):
        if len(_shapes) >= _MOST_SHAPES:
            _shapes.clear()
        _shapes[id(record), terms] = shape
    return shape


def pack_shape(birth: Birth, searchable: frozenset[str]) -> Shape:
    """What a birth has in common with others of its kind."""
    return Shape(
        record=row_of(birth.record, searchable),
        dedup_window_ms=birth.dedup_window_ms,
        delay_until=birth.delay_until,
        deadline_at=birth.deadline_at,
        deadline_in=birth.deadline_in,
        has_dependencies=birth.has_dependencies,
        fairness_key=birth.record.fairness_key,
    )


def _terms(birth: Birth) -> tuple[Any, ...]:
    return (
        birth.dedup_window_ms,
        birth.delay_until,
        birth.deadline_at,
        birth.deadline_in,
        birth.has_dependencies,
    )
