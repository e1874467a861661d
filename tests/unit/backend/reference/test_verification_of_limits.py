"""Verify counts limits once more, and finds whatever does not add up."""

from typing import Any

import msgspec
import pytest

from flowfabric.backend.reference.admission import start_admit
from flowfabric.backend.reference.budgets import start_reserve, start_spend
from flowfabric.backend.reference.definitions import start_define
from flowfabric.backend.reference.limit_tables import (
    ATTACHED,
    BUDGETS,
    ENTRIES,
    GATES,
    LEDGERS,
    RESERVATIONS,
    SLOTS,
)
from flowfabric.backend.reference.tables import Changes, Put, Table
from flowfabric.core.limits.asks import (
    Admission,
    DefineBudget,
    DefineQuota,
    KeyAsk,
    QuotaAsk,
    Reservation,
    Reserve,
    Spend,
)
from flowfabric.core.limits.budgets import Budget, Ledger, Share
from flowfabric.core.limits.gates import Entry, Quota, Slot, quota_gate
from tests.unit.backend.reference.world import World, id_of

ROOT, LEAF, QUOTA = "root", "leaf", "quota"
OWN = id_of(1)
GATE = quota_gate(QUOTA)


@pytest.fixture
def world() -> World:
    """A tree of budgets and a quota in use. Not checked afterwards: the tests break it."""
    made = World()
    limits: dict[str, Any] = {"hard_limits": {"t": 100}, "soft_limits": {"t": 0}}
    made.do(start_define, DefineBudget(Budget(budget_id=ROOT, **limits)))
    made.do(start_define, DefineBudget(Budget(budget_id=LEAF, **limits), ROOT))
    quota = Quota(quota_policy_id=QUOTA, window_seconds=9, max_requests_per_window=5)
    made.do(start_define, DefineQuota(msgspec.structs.replace(quota, max_concurrent=5)))
    made.do(start_spend, Spend(budget_id=LEAF, amounts={"t": 5}, execution_id=OWN))
    reserve = Reserve(budget_id=LEAF, reservation_id="r", amounts={"t": 7}, ttl_ms=1_000)
    made.do(start_reserve, reserve)
    asks = (QuotaAsk(QUOTA), KeyAsk("default", "k", 1))
    made.do(start_admit, Admission(execution_id=OWN, asks=asks, holder="h", hold_ms=500))
    assert made.verify() == []
    return made


def put(world: World, table: Table[Any, Any], key: Any, value: Any) -> None:
    world.tables.write(Changes({table: [Put(key, value)]}, []))


def spoil(world: World, table: Table[Any, Any], key: Any, **changes: Any) -> None:
    row: Any = world.tables.get(table, key)
    put(world, table, key, msgspec.structs.replace(row, **changes))


def kinds(world: World) -> set[str]:
    return {found.kind for found in world.verify()}


@pytest.mark.parametrize("field", ["slots", "entries"])
@pytest.mark.parametrize("count", [0, 2])
def test_a_wrong_count_at_a_gate_is_found(world: World, field: str, count: int) -> None:
    spoil(world, GATES, GATE, **{field: count})
    assert kinds(world) == {"gate"}


def test_slots_without_a_gate_are_found(world: World) -> None:
    put(world, SLOTS, ("k:default:other", OWN), Slot("h", 5))
    put(world, ENTRIES, ("q:other", OWN), Entry(5, "h"))
    assert len(world.verify()) == 2


@pytest.mark.parametrize("kind", ["slot", "entry"])
def test_something_that_outlives_its_gate_is_found(world: World, kind: str) -> None:
    later = world.clock() + 60_000
    if kind == "slot":
        put(world, SLOTS, (GATE, OWN), Slot("h", later))
    else:
        put(world, ENTRIES, (GATE, OWN), Entry(later, "h"))
    assert kinds(world) == {"gate_end"}


@pytest.mark.parametrize("level", [LEAF, ROOT])
def test_what_is_set_aside_must_be_held_by_somebody(world: World, level: str) -> None:
    spoil(world, BUDGETS, level, reserved={"t": 8})
    assert kinds(world) == {"reserved"}


def test_a_hold_without_a_budget_is_found(world: World) -> None:
    put(
        world,
        RESERVATIONS,
        ("nobody", "r"),
        Reservation(root_id="nobody", amounts={"t": 1}, until=5),
    )
    assert kinds(world) == {"reservation"}


def test_less_usage_than_ledgers_tell_is_found(world: World) -> None:
    spoil(world, BUDGETS, ROOT, used={"t": 4})
    assert kinds(world) == {"used"}


def test_a_ledger_from_before_a_reset_tells_nothing(world: World) -> None:
    put(world, LEDGERS, (OWN, LEAF), Ledger((Share(LEAF, 9, {"t": 99}),)))
    assert world.verify() == []


def test_usage_below_nothing_is_found(world: World) -> None:
    put(world, LEDGERS, (OWN, LEAF), None)
    spoil(world, BUDGETS, LEAF, used={"t": -1})
    assert kinds(world) == {"usage"}


def test_a_tree_that_does_not_hang_together_is_found(world: World) -> None:
    spoil(world, BUDGETS, ROOT, ancestors=("somebody",))
    assert "ancestors" in kinds(world)


def test_a_hold_nobody_would_end_is_found(world: World) -> None:
    spoil(world, BUDGETS, ROOT, reservations_end_at=0)
    assert kinds(world) == {"reservations_end_at"}


def test_attached_executions_must_exist_and_be_listed(world: World) -> None:
    put(world, ATTACHED, (LEAF, OWN), 5)
    assert kinds(world) == {"attached"}
