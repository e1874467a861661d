"""The baseline: one set-based statement for each step, and no engine.

Each connection, in a thread of its own, creates, claims and finishes batches. Nothing is decided,
encoded or checked; row sizes are those the engine writes.
"""

import asyncio
import itertools
import time
import uuid
from contextlib import closing
from typing import Final

import msgspec
from psycopg.conninfo import conninfo_to_dict

from bench.measure import Measure
from bench.measure import measure as measure_callers
from bench.postgres.rig import server_cpu_s
from flowfabric.backend.postgres import migrations
from flowfabric.backend.postgres.connecting import Target
from flowfabric.backend.postgres.connection import Connection
from tests.postgres_server import PostgresServer

BATCH: Final = 50
CONNECTIONS: Final = 2
_BODY, _ATTEMPT, _ENTRY, _BLOB = b"r" * 420, b"a" * 230, b"e" * 260, b"x" * 256
_CREATE: Final = """WITH e AS (INSERT INTO exec (execution_id, seq, part, namespace, lane, req_set,
 kind, state, bucket, sort, rank, created_at, due_at, purge_at, grant_until, worker_instance_id,
 flow_id, parent_id, tied, body) SELECT id, seq, 86, 'default', 'default', '-', 'bench', 'waiting',
 'waiting', at, at, at, 0, 0, 0, '', '', '', 0, body
 FROM unnest(?, ?, ?, ?) AS u(id, seq, at, body))
 INSERT INTO blob (owner, name, body) SELECT seq, 'input', body FROM unnest(?, ?) AS b(seq, body)"""
_CLAIM: Final = """WITH c AS MATERIALIZED (SELECT execution_id, seq FROM exec
 WHERE namespace = 'default' AND lane = 'default' AND req_set = '-'
 AND state IN ('lost', 'waiting') AND grant_until = 0
 ORDER BY rank, execution_id LIMIT ? FOR UPDATE SKIP LOCKED),
 u AS (UPDATE exec AS e SET state = 'active', bucket = 'active', sort = e.created_at, due_at = ?,
 worker_instance_id = 'bench-1', body = ? FROM c WHERE e.execution_id = c.execution_id),
 l AS (INSERT INTO log (at, body) SELECT ?, ? FROM c)
 SELECT c.execution_id, c.seq, b.body FROM c JOIN blob AS b ON b.owner = c.seq
 AND b.name = 'input'"""
_FINISH: Final = """WITH c AS MATERIALIZED (SELECT execution_id, seq FROM exec
 WHERE execution_id = ANY (?) ORDER BY execution_id FOR UPDATE),
 u AS (UPDATE exec AS e SET state = 'completed', bucket = 'completed', sort = ?, due_at = 0,
 purge_at = ?, worker_instance_id = '', body = ? FROM c WHERE e.execution_id = c.execution_id),
 a AS (INSERT INTO attempt (owner, position, body) SELECT seq, 0, ? FROM c),
 b AS (INSERT INTO blob (owner, name, body) SELECT seq, 'result', ? FROM c),
 l AS (INSERT INTO log (at, body) SELECT ?, ? FROM c) SELECT count(*) FROM c"""


def _batch(connection: Connection, numbers: "itertools.count[int]") -> int:
    """How many it finished: of its own, the other connection may have claimed some."""
    now = time.time_ns() // 1_000_000
    ids = sorted(f"{{fp:86}}:{uuid.uuid4()}" for _ in range(BATCH))
    owners = [next(numbers) for _ in range(BATCH)]
    new = (ids, owners, [now] * BATCH, [_BODY] * BATCH, owners, [_BLOB] * BATCH)
    connection.run([(_CREATE, new)])
    (claimed,) = connection.run([(_CLAIM, (BATCH, now + 30_000, _BODY, now, _ENTRY))])
    if not claimed:
        return 0
    done = (sorted(row[0] for row in claimed), now, now + 86_400_000)
    ((told,),) = connection.run([(_FINISH, (*done, _BODY, _ATTEMPT, _BLOB, now, _ENTRY))])
    if told[0] != len(claimed):
        raise RuntimeError(f"finished {told[0]} of {len(claimed)}")
    return len(claimed)


def _connection(server: PostgresServer) -> Connection:
    """To tables of its own: the engine could not read what it leaves."""
    given = conninfo_to_dict(server.address)
    target = Target({name: str(value) for name, value in given.items()}, schema="raw")
    return Connection(target)


def set_up_raw(server: PostgresServer) -> None:
    with closing(_connection(server)) as connection:
        migrations.ensure(connection, migrates=False)


def _work(server: PostgresServer, first: int, batches: int) -> int:
    numbers = itertools.count(first)
    with closing(_connection(server)) as connection:
        return sum(_batch(connection, numbers) for _ in range(batches))


async def raw_run(server: PostgresServer, cycles: int, first: int) -> Measure:
    """`first` is where the numbers of its executions begin."""
    batches = cycles // BATCH // CONNECTIONS
    before = server_cpu_s(server)
    places = itertools.count(first, 1_000_000)

    finished: list[int] = []

    async def connection() -> None:
        finished.append(await asyncio.to_thread(_work, server, next(places), batches))

    found = await measure_callers("raw statements", connection, CONNECTIONS, CONNECTIONS)
    return msgspec.structs.replace(
        found,
        cycles=sum(finished),
        server_cpu_seconds=server_cpu_s(server) - before,
    )
