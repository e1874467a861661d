"""What SQLite's errors mean to the callers of a store."""

import os
import sqlite3
import stat
from typing import Final

from flowfabric.backend.sql.batches import Kind
from flowfabric.errors import (
    Bug,
    Corruption,
    FlowFabricError,
    OtherFault,
    PayloadTooLarge,
    ResourceExhausted,
    RetryExhausted,
    Unavailable,
)

_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_ITEM: Final = frozenset(
    {sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH}
)
_BROKEN: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_REFUSED: Final = frozenset(
    {
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_AUTH,
    }
)


def code_of(fault: BaseException) -> int:
    """SQLite's primary result code; 0 when the fault is not SQLite's."""
    code: int = getattr(fault, "sqlite_errorcode", 0)
    return code & 0xFF


def _is_sealed(fault: BaseException) -> bool:
    """Whether a trigger has refused the write: the deployment moves to another store."""
    return getattr(fault, "sqlite_errorcode", 0) == sqlite3.SQLITE_CONSTRAINT_TRIGGER


def kind_of(fault: Exception) -> Kind:
    code = code_of(fault)
    if _is_sealed(fault):
        return "fault"
    if code in _BUSY:
        return "busy"
    if code in _BROKEN:
        return "broken"
    if code in _ITEM or not code:
        # Without a code SQLite never saw it: a value that cannot be bound, packed or unpacked.
        return "item"
    return "fault"


def error_for(fault: Exception, path: str) -> FlowFabricError:
    """The error a caller gets, a new one each time: a raised exception grows its traceback."""
    error = _error_for(fault, path)
    error.__cause__ = fault
    return error


def _error_for(fault: Exception, path: str) -> FlowFabricError:
    if isinstance(fault, FlowFabricError):
        return type(fault)(fault.detail, **fault.details)
    code = code_of(fault)
    if _is_sealed(fault):
        return Unavailable(f"sqlite: {path} is {fault}")
    if code in _BUSY:
        return RetryExhausted(f"sqlite: {path}: another process holds the lock: {fault}")
    if code == sqlite3.SQLITE_TOOBIG or isinstance(fault, OverflowError | sqlite3.DataError):
        return PayloadTooLarge(f"sqlite: {fault}")
    if code == sqlite3.SQLITE_FULL:
        return ResourceExhausted(f"disk: no room to write {path}", resource="disk")
    if code in _BROKEN:
        return Corruption(f"{path}: {fault}. {RESCUE}")
    if code in _REFUSED:
        return OtherFault(f"sqlite: {path}: {fault}; {permissions(path)}")
    if code == sqlite3.SQLITE_IOERR:
        return OtherFault(f"sqlite: {path}: {fault}")
    return Bug(f"sqlite: {type(fault).__name__}: {fault}")


RESCUE: Final = (
    "Stop all processes that use the file and restore a backup, or save what can be read:"
    ' sqlite3 FILE ".recover" | sqlite3 NEW_FILE'
)


def permissions(path: str) -> str:
    """Who may do what with the file, for the reader of an error message."""
    if not os.path.exists(path):
        directory = os.path.dirname(path)
        if not os.path.isdir(directory):
            return f"the directory {directory} does not exist"
        return f"the file does not exist, its directory is {_mode(directory)}"
    return f"the file is {_mode(path)}, its directory {_mode(os.path.dirname(path))}"


def _mode(path: str) -> str:
    facts = os.stat(path)
    mode = stat.filemode(facts.st_mode)
    return f"{mode} of user {facts.st_uid} (this process is user {os.geteuid()})"
