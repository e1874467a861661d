"""Damage one stored record, as a bad disk or a foreign hand would, and put it right again."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from flowfabric.backend.base import Backend
from flowfabric.backend.reference.tables import RECORDS
from flowfabric.errors import Corruption
from tests.postgres_server import shared_postgres
from tests.stores import SQLITE_FILE


class _Unreadable:
    def __getattr__(self, name: str) -> Any:
        raise Corruption(f"record: {name}: cannot be read")


@asynccontextmanager
async def unreadable(backend: Backend, execution_id: str, directory: Path) -> AsyncIterator[None]:
    """For the length of the block nobody can read this record."""
    match backend.describe().family:
        case "memory":
            rows = backend._runner.tables._tables[RECORDS].by_key  # type: ignore[attr-defined]
            whole, rows[execution_id] = rows[execution_id], _Unreadable()
            yield
            rows[execution_id] = whole
        case "postgres":
            whole = _swap_in_postgres(execution_id, b"\xc1")
            yield
            _swap_in_postgres(execution_id, whole)
        case "valkey":
            whole = await _put_row(backend, execution_id, b"\xc1")
            yield
            await _put_row(backend, execution_id, whole)
        case _:
            path = str(directory / SQLITE_FILE)
            whole = _swap(path, execution_id, b"\xc1")
            yield
            _swap(path, execution_id, whole)


async def _put_row(backend: Backend, execution_id: str, row: bytes) -> bytes:
    key = f"ff:x:{execution_id}"
    node = backend._topology.node_of(key)  # type: ignore[attr-defined]
    old = await node.run("HGET", key, "r")
    await node.run("HSET", key, "r", row)
    return bytes(old)


def _swap_in_postgres(execution_id: str, body: bytes) -> bytes:
    server, where = shared_postgres(), "WHERE execution_id = %s"
    ((old,),) = server.run(f"SELECT body FROM flowfabric.exec {where}", execution_id)
    server.run(f"UPDATE flowfabric.exec SET body = %s {where}", body, execution_id)
    return bytes(old)


def _swap(path: str, execution_id: str, body: bytes) -> bytes:
    connection = sqlite3.connect(path, timeout=10)
    with connection:
        where = "WHERE execution_id = ?"
        old = connection.execute(f"SELECT body FROM exec {where}", (execution_id,)).fetchone()[0]
        connection.execute(f"UPDATE exec SET body = ? {where}", (body, execution_id))
    connection.close()
    return bytes(old)
