"""Every error of Postgres has one meaning for callers."""

import pytest

from flowfabric.backend.postgres.faults import (
    ConnectionLost,
    LocksMoved,
    StatementFailed,
    error_for,
    is_lost,
    kind_of,
)
from flowfabric.backend.sql.batches import Kind
from flowfabric.errors import (
    AuthFault,
    Bug,
    Conflict,
    FlowFabricError,
    OtherFault,
    PayloadTooLarge,
    ResourceExhausted,
    RetryExhausted,
    StoreTimeout,
    TransportFault,
    Unavailable,
)

WHERE = "postgres db:5432/app"


def failed(state: str) -> StatementFailed:
    return StatementFailed(state, "what Postgres said")


def lost(text: str = "the server ended the connection") -> ConnectionLost:
    return ConnectionLost(text)


def refused(text: str) -> ConnectionLost:
    return ConnectionLost(text, is_refused=True)


@pytest.mark.parametrize(
    ("fault", "kind", "error"),
    [
        (failed("40001"), "busy", RetryExhausted),
        (failed("40P01"), "busy", RetryExhausted),
        (failed("55P03"), "busy", RetryExhausted),
        (failed("23505"), "busy", RetryExhausted),
        (LocksMoved("a record joined a flow"), "busy", RetryExhausted),
        (failed("22001"), "item", PayloadTooLarge),
        (failed("54000"), "item", PayloadTooLarge),
        (OverflowError("int too big"), "item", PayloadTooLarge),
        (failed("22021"), "item", Bug),
        (failed("23514"), "item", Bug),
        (failed("53100"), "fault", ResourceExhausted),
        (failed("53200"), "fault", ResourceExhausted),
        (failed("57014"), "fault", StoreTimeout),
        (failed("08006"), "busy", TransportFault),
        (failed("57P01"), "busy", TransportFault),
        (failed("57P02"), "busy", TransportFault),
        (failed("57P03"), "busy", TransportFault),
        (failed("53300"), "busy", TransportFault),
        (failed("25006"), "busy", TransportFault),
        (lost(), "busy", TransportFault),
        (refused("timeout expired, nobody answers"), "fault", TransportFault),
        (refused('password authentication failed for user "u"'), "fault", AuthFault),
        (refused("no pg_hba.conf entry for host"), "fault", AuthFault),
        (refused('database "app" does not exist'), "fault", AuthFault),
        (failed("28000"), "fault", AuthFault),
        (failed("28P01"), "fault", AuthFault),
        (failed("42501"), "fault", AuthFault),
        (failed("42P01"), "fault", OtherFault),
        (failed("42703"), "fault", OtherFault),
        (failed("42883"), "fault", OtherFault),
        (failed("26000"), "fault", OtherFault),
        (failed("42P05"), "fault", OtherFault),
        (failed("FFMOV"), "fault", Unavailable),
        (failed("42601"), "fault", Bug),
        (ValueError("cannot pack"), "item", Bug),
        (Conflict("which", member="input"), "item", Conflict),
    ],
    ids=repr,
)
def test_a_fault_has_one_kind_and_one_error(
    fault: Exception, kind: Kind, error: type[FlowFabricError]
) -> None:
    assert kind_of(fault) == kind
    made = error_for(fault, WHERE)
    assert type(made) is error
    assert made.__cause__ is fault
    assert made is not fault


@pytest.mark.parametrize("fault", [lost(), failed("57P01"), failed("08006")], ids=repr)
def test_a_connection_lost_in_a_commit_may_have_committed(fault: ConnectionLost) -> None:
    """Only the caller knows whether to repeat the call; the transaction is not run again."""
    fault.is_at_commit = True
    assert is_lost(fault)
    assert kind_of(fault) == "fault"
    assert error_for(fault, WHERE).retryable


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (failed("42P01"), "run flowfabric migrate"),
        (failed("26000"), "add pooler=transaction to the URL"),
        (refused("password authentication failed"), "check user and password"),
        (failed("53100"), "no room on postgres db:5432/app"),
    ],
    ids=repr,
)
def test_an_error_says_where_and_what_to_do(fault: Exception, said: str) -> None:
    detail = error_for(fault, WHERE).detail
    assert WHERE in detail
    assert said in detail
