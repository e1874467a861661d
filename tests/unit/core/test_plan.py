"""Plans that no store could apply are refused before they are sent."""

from typing import Any

import pytest

from flowfabric.core.plan import Guard, Plan, Timer, check_plan
from flowfabric.core.rules.operators import Block, block
from tests.unit.core.records import EXECUTION, FENCE


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rule": "abolish"}, "unknown rule"),
        ({"set": {"version": 9}}, "may not set version"),
        ({"set": {"lease_epoch": 9}}, "may not set lease_epoch"),
        ({"set": {"due_at": 9}}, "may not set due_at"),
        ({"set": {"wake_at": 9}}, "may not set wake_at"),
        ({"set": {"no_such_field": 1}}, "may not set no_such_field"),
        ({"op": "op-1"}, "operation id"),
        ({"op": "x" * 65, "guard": Guard(frozenset({"active"}), FENCE)}, "operation id"),
        ({"guard": Guard(frozenset())}, "unknown states"),
        ({"guard": Guard(frozenset({"asleep"}))}, "unknown states"),
        ({"guard": Guard(frozenset({"asleep/signal"}))}, "unknown states"),
    ],
)
def test_a_plan_no_store_could_apply_is_refused_before_it_is_sent(
    fields: dict[str, Any], message: str
) -> None:
    whole: dict[str, Any] = {
        "target": EXECUTION,
        "rule": "note",
        "guard": Guard(frozenset({"active"})),
    }
    check_plan(Plan(**whole))
    with pytest.raises(ValueError, match=message):
        check_plan(Plan(**(whole | fields)))


@pytest.mark.parametrize("reason", ["budget", "quota", "concurrency", "route"])
@pytest.mark.parametrize(("asked", "look_in"), [(None, 5_000), (0, 0), (700, 700)])
def test_a_block_by_a_limit_is_looked_at_again(
    reason: str, asked: int | None, look_in: int
) -> None:
    assert block(EXECUTION, Block(reason, look_in_ms=asked)).timer == Timer(wake_in=look_in)


@pytest.mark.parametrize("reason", ["operator", "lane_state"])
def test_a_hold_is_never_lifted_by_time(reason: str) -> None:
    assert block(EXECUTION, Block(reason, look_in_ms=5_000)).timer is None
