"""What executions leave at budgets and gates: beside their creation, and when they are purged.

Budgets lie elsewhere than executions, so none of this is one step with the change it follows.
"""

from collections.abc import Iterable, Sequence

from flowfabric.backend.valkey.calls import Calls
from flowfabric.backend.valkey.fan_out import ask_tags
from flowfabric.backend.valkey.limit_packing import Places, places_in
from flowfabric.backend.valkey.requests import Attaching
from flowfabric.core.new_execution import NewExecution
from flowfabric.core.record import Record


async def attach(calls: Calls, executions: Iterable[NewExecution]) -> None:
    """List new executions with their budgets."""
    charged = ((new.execution_id, new.record.budget_ids) for new in executions)
    pairs = _pairs(places_in(calls.counts), charged)
    await ask_tags(
        calls, "attach", pairs, lambda tags: [Attaching(tag, pairs[tag], (), ()) for tag in tags]
    )


async def forget(calls: Calls, ids: Sequence[str], records: Iterable[Record]) -> None:
    """Drop what purged executions leave: their ledgers, which may be at any budget, and that they
    were attached. `records` are those that had limits."""
    if not ids:
        return
    places = places_in(calls.counts)
    pairs = _pairs(places, ((record.execution_id, record.budget_ids) for record in records))
    await ask_tags(
        calls,
        "attach",
        places.budgets,
        lambda tags: [Attaching(tag, (), pairs.get(tag, ()), ids) for tag in tags],
    )


async def drop_ended(calls: Calls) -> None:
    """Drop waiters whose time is over, and what is left of gates at which all has ended."""
    places = places_in(calls.counts)
    tags = (*places.budgets, *places.gates)
    await ask_tags(calls, "drop_ended", tags, lambda own: own)


def _pairs(places: Places, charged: Iterable[tuple[str, tuple[str, ...]]]) -> dict[str, list[str]]:
    """Budget and execution in turn, by tag."""
    pairs: dict[str, list[str]] = {}
    for execution_id, budget_ids in charged:
        for budget_id in budget_ids:
            own = pairs.setdefault(places.budget(budget_id), [])
            own += (budget_id, execution_id)
    return pairs
