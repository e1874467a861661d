"""Mechanism `create`."""

from collections.abc import Sequence
from typing import Any

from flowfabric.backend.base import Answered
from flowfabric.backend.types import CreateAnswer, Created, Duplicate
from flowfabric.backend.valkey.calls import Calls, Reply
from flowfabric.backend.valkey.graph_rows import flow_of
from flowfabric.backend.valkey.keys import execution_partition_key
from flowfabric.backend.valkey.limit_upkeep import attach
from flowfabric.backend.valkey.packing import Args, decode, encode, row_of, static_rest, static_text
from flowfabric.core.birth import Birth, first_state
from flowfabric.core.flow_plan import FlowRefused
from flowfabric.core.graph import Flow
from flowfabric.errors import Bug


class CreateMechanism:
    _calls: Calls

    async def create(self, items: Sequence[Birth]) -> list[Answered[CreateAnswer]]:
        answers = await self._calls.batches(
            "create", items, _key, self._pack_birth, self._read_birth
        )
        charged = [
            birth
            for birth, answer in zip(items, answers, strict=True)
            if birth.record.budget_ids and isinstance(answer, Created)
        ]
        if charged:
            await attach(self._calls, charged)
        return answers

    def _pack_birth(self, birth: Birth, args: Args) -> list[Any]:
        return pack_birth(birth, args, self._calls.searchable)

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


def _key(birth: Birth) -> str:
    return execution_partition_key(birth.execution_id)


def pack_birth(birth: Birth, args: Args, searchable: frozenset[str]) -> list[Any]:
    shape, static = _shared(birth, args, searchable)
    return [
        birth.execution_id,
        shape,
        static_text(birth.execution_id, static),
        args.put(birth.input) if birth.input else 0,
        birth.record.idempotency_key,
    ]


def _shared(birth: Birth, args: Args, searchable: frozenset[str]) -> tuple[int, str]:
    """The argument of a birth's shape and most of its static text, made once for all births of a
    batch that share a record and its terms."""
    record, terms = birth.record, _terms(birth)
    found = args.shared.get((id(record), terms))
    if found is None:
        shape = args.put_once(encode(pack_shape(birth, searchable)))
        found = args.shared[id(record), terms] = shape, static_rest(record)
    return found


def pack_shape(birth: Birth, searchable: frozenset[str]) -> tuple[Any, ...]:
    """What a birth has in common with others of its kind."""
    return row_of(birth.record, searchable), *_terms(birth), birth.record.fairness_key


def _terms(birth: Birth) -> tuple[Any, ...]:
    return (
        birth.dedup_window_ms,
        birth.delay_until,
        birth.deadline_at,
        birth.deadline_in,
        birth.has_dependencies,
    )
