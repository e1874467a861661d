"""What errors of Postgres mean to the callers of a store."""

from typing import Final

from flowfabric.backend.sql.batches import Kind
from flowfabric.errors import (
    AuthFault,
    Bug,
    FlowFabricError,
    OtherFault,
    PayloadTooLarge,
    ResourceExhausted,
    RetryExhausted,
    StoreTimeout,
    TransportFault,
    Unavailable,
)

# Deadlock, serialization failure, lock not available, and a key that another transaction inserted
# first: the transaction is run again.
_REPEATED: Final = frozenset({"40P01", "40001", "55P03", "23505"})
# A value that is too long, or an index or row that it does not fit into.
_TOO_LARGE: Final = frozenset({"22001", "54000", "54001"})
# An item that cannot be stored: a bad value, a violated constraint.
_ITEM: Final = frozenset({"22021", "22003", "22P05", "23502", "23514"})
_FULL: Final = frozenset({"53100", "53200"})
_CANCELLED: Final = "57014"
# The server shuts down, starts, or ended this connection; too many connections; a standby that is
# being promoted.
_RESTARTING: Final = frozenset({"57P01", "57P02", "57P03", "53300", "25006"})
# What a trigger raises once the deployment moves to another store.
CLOSED: Final = "FFMOV"
_MISSING: Final = frozenset({"42P01", "42703", "42883", "3F000"})
# A prepared statement that is not there, or is there already: the connection is not ours alone.
_SHARED: Final = frozenset({"26000", "42P05"})


class DatabaseFault(Exception):
    """`is_at_commit`: perhaps the transaction was committed all the same."""

    is_at_commit = False


class ConnectionLost(DatabaseFault):
    """`is_refused`: there was no connection."""

    def __init__(self, text: str, *, is_refused: bool = False) -> None:
        super().__init__(text)
        self.is_refused = is_refused


class StatementFailed(DatabaseFault):
    """The server refused a statement; the transaction is over."""

    def __init__(self, state: str, message: str, constraint: str = "") -> None:
        super().__init__(f"{message} ({state})")
        self.message = message
        self.state = state
        self.constraint = constraint


class LocksMoved(Exception):
    """What was to be locked has changed while the locks were taken: run the transaction again."""


def is_lost(fault: Exception) -> bool:
    """Whether the connection can be used no more."""
    if isinstance(fault, StatementFailed):
        return fault.state in _RESTARTING or fault.state.startswith("08")
    return isinstance(fault, ConnectionLost)


def kind_of(fault: Exception) -> Kind:
    if isinstance(fault, LocksMoved):
        return "busy"
    if isinstance(fault, DatabaseFault) and is_lost(fault):
        # Nothing was done yet, so a new connection may do it.
        is_final = fault.is_at_commit or getattr(fault, "is_refused", False)
        return "fault" if is_final else "busy"
    if not isinstance(fault, StatementFailed):
        # Postgres never saw it: a value that cannot be packed or unpacked.
        return "item"
    if fault.state in _REPEATED:
        return "busy"
    return "item" if fault.state in _TOO_LARGE | _ITEM else "fault"


def error_for(fault: Exception, where: str) -> FlowFabricError:
    """The error a caller gets, a new one each time: a raised exception grows its traceback."""
    error = _error_for(fault, where)
    error.__cause__ = fault
    return error


def _error_for(fault: Exception, where: str) -> FlowFabricError:
    if isinstance(fault, FlowFabricError):
        return type(fault)(fault.detail, **fault.details)
    if isinstance(fault, StatementFailed):
        return _of_state(fault, where)
    if isinstance(fault, ConnectionLost):
        return _of_connection(fault, where)
    if isinstance(fault, LocksMoved):
        return RetryExhausted(f"{where}: gave up after conflicting transactions: {fault}")
    if isinstance(fault, OverflowError):
        return PayloadTooLarge(f"postgres: {fault}")
    return Bug(f"postgres: {type(fault).__name__}: {fault}")


def _of_state(fault: StatementFailed, where: str) -> FlowFabricError:
    state, text = fault.state, f"{where}: {fault}"
    if state in _REPEATED:
        return RetryExhausted(f"{where}: gave up after conflicting transactions: {fault}")
    if state in _TOO_LARGE:
        return PayloadTooLarge(f"postgres: {fault}")
    if state in _FULL:
        return ResourceExhausted(f"postgres: no room on {where}: {fault}", resource="postgres")
    if state == _CANCELLED:
        return StoreTimeout(text)
    if state in _RESTARTING or state.startswith("08"):
        return TransportFault(text)
    if state == CLOSED:
        return Unavailable(f"{where} is {fault.message}")
    if state in _MISSING:
        return OtherFault(f"{text}; the schema does not fit this release: run flowfabric migrate")
    if state in _SHARED:
        advice = "add pooler=transaction to the URL"
        return OtherFault(f"{text}; a pooler of transactions stands between: {advice}")
    if state.startswith("28") or state == "42501":
        return AuthFault(text)
    return Bug(f"postgres: {fault}")


_PASSWORD: Final = ("password authentication failed", "no password supplied", "pg_hba.conf")


def _of_connection(fault: ConnectionLost, where: str) -> FlowFabricError:
    text = " ".join(str(fault).split())
    if any(words in text for words in _PASSWORD):
        return AuthFault(f"{where} refused the login: check user and password: {text}")
    if "does not exist" in text:
        return AuthFault(f"{where}: {text}")
    return TransportFault(f"{where}: {text}")
