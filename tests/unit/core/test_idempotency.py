"""Idempotency keys: their scope, and how long they stand for an execution."""

import pytest

from flowfabric.core.idempotency import KeyEntry, known_execution, new_entry, scoped_key
from flowfabric.core.new_execution import NewExecution
from flowfabric.core.record import Record
from tests.unit.core.graphs import FLOW
from tests.unit.core.records import EXECUTION, NOW


def record(key: str, flow_id: str = "") -> Record:
    return Record(
        execution_id="", namespace="team", lane="gpu", idempotency_key=key, flow_id=flow_id
    )


def new(key: str, window_ms: int) -> NewExecution:
    return NewExecution(execution_id=EXECUTION, record=record(key), dedup_window_ms=window_ms)


def test_a_key_is_unique_in_its_namespace() -> None:
    assert scoped_key(record("order-7")) == ("namespace:team", "order-7")


def test_the_key_of_a_member_is_unique_in_its_flow() -> None:
    assert scoped_key(record("order-7", FLOW)) == (f"flow:{FLOW}", "order-7")


@pytest.mark.parametrize(("expires_at", "known"), [(NOW - 1, ""), (NOW, ""), (NOW + 1, EXECUTION)])
def test_a_key_stands_for_its_execution_until_it_expires(expires_at: int, known: str) -> None:
    assert known_execution(KeyEntry(EXECUTION, expires_at), NOW) == known


def test_a_key_that_was_never_used_is_free() -> None:
    assert known_execution(None, NOW) == ""


def test_a_new_execution_holds_its_key_for_the_window() -> None:
    assert new_entry(new("order-7", 500), NOW) == KeyEntry(EXECUTION, NOW + 500)


@pytest.mark.parametrize(("key", "window_ms"), [("", 500), ("order-7", 0), ("order-7", -1)])
def test_without_a_key_or_a_window_nothing_is_remembered(key: str, window_ms: int) -> None:
    assert new_entry(new(key, window_ms), NOW) is None
