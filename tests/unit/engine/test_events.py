"""How one entry of the log becomes the events of its families."""

from typing import Any, get_args

import pytest

from flowfabric.backend.types import StoredEvent
from flowfabric.core.events import LogEntry
from flowfabric.core.pages import to_text
from flowfabric.core.plan import Family
from flowfabric.engine.streams.events import Events, events_of
from flowfabric.errors import InvalidInput
from flowfabric.operations.events import (
    FAMILIES,
    BackpressureEvent,
    CompletionEvent,
    CorruptionEvent,
    EventScope,
    FlowEvent,
    LeaseEvent,
    OperatorEvent,
    SignalEvent,
)
from tests.unit.engine.nostore import deps_without_store

ID = "{fp:7}:00000000-0000-4000-8000-000000000001"
FLOW = "11111111-2222-4333-8444-555555555555"
ALL = frozenset[Family](FAMILIES)
HERE = to_text(b"here")


def entry(kind: str, *families: Family, **fields: Any) -> LogEntry:
    defaults: dict[str, Any] = {"at": 5, "execution_id": ID}
    return LogEntry(kind=kind, families=families, **(defaults | fields))


def only(log_entry: LogEntry) -> Any:
    (event,) = events_of(StoredEvent(b"here", log_entry), ALL, b"before")
    assert not isinstance(event, BackpressureEvent | CorruptionEvent)
    assert event.cursor == HERE
    assert event.at == 5
    return event


@pytest.mark.parametrize(
    ("logged", "outcome"),
    [
        ("success", "success"),
        ("failed", "failure"),
        ("failure", "failure"),
        ("cancelled", "cancelled"),
        ("expired", "expired"),
        ("skipped", "skipped"),
        ("evaporated", "evaporated"),
    ],
)
def test_completion_outcomes(logged: str, outcome: object) -> None:
    event = only(entry("released", "completion", flow_id=FLOW, details={"outcome": logged}))
    assert isinstance(event, CompletionEvent)
    assert (event.execution_id, event.flow_id, event.outcome) == (ID, FLOW, outcome)


def test_a_standalone_completion_has_no_flow() -> None:
    assert only(entry("released", "completion", details={"outcome": "success"})).flow_id == ""


@pytest.mark.parametrize(
    ("kind", "details", "fields"),
    [
        (
            "acquired",
            {},
            {"lease_id": "l", "worker_instance_id": "w", "reason": ""},
        ),
        (
            "released",
            {"reason": "completed"},
            {"lease_id": "l", "worker_instance_id": "w", "reason": "completed"},
        ),
        ("expired", {}, {"lease_id": "l", "prev_owner": "w"}),
        ("reclaimed", {"new_lease_id": "n"}, {"new_lease_id": "n", "new_owner": "w"}),
        ("revoked", {"reason": "operator"}, {"lease_id": "l", "revoked_by": "operator"}),
        ("revoked", {"reason": "it hangs"}, {"lease_id": "l", "revoked_by": "operator"}),
        ("revoked", {"reason": "reconciler"}, {"lease_id": "l", "revoked_by": "reconciler"}),
        ("revoked", {"reason": "backend"}, {"lease_id": "l", "revoked_by": "backend"}),
        (
            "replay_initiated",
            {"replay_count": "2", "replay_type": "normal"},
            {"replay_count": 2, "replay_type": "normal"},
        ),
    ],
)
def test_lease_kinds(kind: str, details: dict[str, str], fields: dict[str, object]) -> None:
    logged = entry(kind, "lease", lease_id="l", worker_instance_id="w", details=details)
    expected = LeaseEvent(cursor=HERE, execution_id=ID, kind=kind, at=5, **fields)  # type: ignore[arg-type]
    assert only(logged) == expected


def test_an_unknown_lease_kind_is_kept_as_text() -> None:
    assert only(entry("sublet", "lease")).kind == "sublet"


def test_a_lease_nobody_held_has_no_ids() -> None:
    event = only(entry("acquired", "lease"))
    assert (event.lease_id, event.worker_instance_id) == ("", "")


@pytest.mark.parametrize(
    ("logged", "effect"),
    [
        ("resume_condition_satisfied", "satisfied"),
        ("buffered_for_pending_waitpoint", "buffered"),
        ("deduped", "deduped"),
        ("appended_to_waitpoint", "appended_to_waitpoint"),
    ],
)
def test_signal_effects(logged: str, effect: object) -> None:
    details = {"signal_id": "s", "waitpoint_id": "w", "effect": logged}
    event = only(entry("signal", "signal", details=details))
    assert isinstance(event, SignalEvent)
    assert (event.signal_id, event.waitpoint_id, event.source_identity) == ("s", "w", "")
    assert event.effect == effect


def test_a_changed_priority_is_an_operators_act() -> None:
    details = {"old_priority": "1", "new_priority": "2"}
    event = only(entry("priority_changed", "operator", flow_id=FLOW, details=details))
    assert isinstance(event, OperatorEvent)
    assert (event.event_type, event.details) == ("priority_changed", details)
    assert (event.execution_id, event.flow_id) == (ID, "")


def test_an_act_on_a_flow_names_the_flow() -> None:
    event = only(entry("flow_cancel_requested", "operator", execution_id="", flow_id=FLOW))
    assert (event.execution_id, event.flow_id) == ("", FLOW)


def test_a_finished_flow() -> None:
    logged = entry("finished", "flow", execution_id="", flow_id=FLOW, details={"state": "failed"})
    assert only(logged) == FlowEvent(
        cursor=HERE, flow_id=FLOW, event="finished", state="failed", at=5
    )


REPLAY = entry(
    "replay_initiated",
    "lease",
    "operator",
    details={
        "replay_count": "1",
        "replay_type": "normal",
        "branch": "normal",
        "groups_reset": "0",
    },
)


def test_an_entry_of_two_families_gives_an_event_for_each() -> None:
    lease, operator = events_of(StoredEvent(b"here", REPLAY), ALL, b"before")
    assert isinstance(lease, LeaseEvent)
    assert isinstance(operator, OperatorEvent)
    assert (lease.kind, operator.event_type) == ("replay_initiated", "replayed")
    assert operator.details == {"branch": "normal", "groups_reset": "0"}


def test_only_the_last_event_of_an_entry_carries_its_cursor() -> None:
    both = events_of(StoredEvent(b"here", REPLAY), ALL, b"before")
    assert [event.cursor for event in both] == [to_text(b"before"), HERE]


@pytest.mark.parametrize("family", ["lease", "operator"])
def test_an_event_that_is_alone_carries_the_cursor(family: Family) -> None:
    (event,) = events_of(StoredEvent(b"here", REPLAY), frozenset({family}), b"before")
    assert isinstance(event, LeaseEvent | OperatorEvent)
    assert event.cursor == HERE


@pytest.mark.parametrize(
    "broken",
    [
        entry("released", "completion"),
        entry("released", "completion", execution_id="", details={"outcome": "success"}),
        entry("signal", "signal", details={"effect": "deduped"}),
        entry("finished", "flow", execution_id=""),
        entry("replay_initiated", "lease", details={"replay_count": "x", "replay_type": "n"}),
        entry("note", "operator", execution_id=""),
    ],
)
def test_an_unreadable_entry_yields_one_corruption(broken: LogEntry) -> None:
    (item,) = events_of(StoredEvent(b"here", broken), ALL, b"before")
    assert isinstance(item, CorruptionEvent)
    assert item.cursor == HERE
    assert "cannot be read" in item.reason


def test_a_family_nobody_asked_for_gives_nothing() -> None:
    assert list(events_of(StoredEvent(b"here", REPLAY), frozenset({"signal"}), b"before")) == []


def test_every_family_has_its_events() -> None:
    assert set(FAMILIES) == set(get_args(Family))


@pytest.mark.parametrize(
    ("families", "scope", "cursor", "match"),
    [
        ((), EventScope(), "", "families"),
        (("completion", "weather"), EventScope(), "", "families"),
        (("lease",), EventScope(namespace="a b"), "", "namespace"),
        (("lease",), EventScope(instance_tag=("app.secret", "1")), "", "searchable"),
        (("lease",), EventScope(partitions=frozenset({256})), "", "partitions"),
        (("lease",), EventScope(), "not base64!", "cursor"),
        (("lease",), EventScope(), b"bytes", "cursor"),
    ],
)
async def test_a_subscription_checks_what_is_asked(
    families: Any, scope: EventScope, cursor: Any, match: str
) -> None:
    events = Events(deps_without_store(), frozenset({"app.case"}))
    with pytest.raises(InvalidInput, match=match):
        await events.subscribe(families, scope, cursor)
