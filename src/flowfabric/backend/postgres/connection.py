"""A connection: statements in pipelines, one trip each, through libpq."""

import select
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import psycopg
from psycopg import pq
from psycopg.pq import abc

from flowfabric.backend.postgres.connecting import Target, connected
from flowfabric.backend.postgres.dialect import binary, reader_of, translated, type_of
from flowfabric.backend.postgres.faults import ConnectionLost, StatementFailed
from flowfabric.backend.sql.layout import Row

# A statement, as `backend.sql` writes it, and its values.
Statement = tuple[str, Sequence[Any]]

BEGIN: Final[Statement] = ("BEGIN", ())
# A read of several statements sees one state.
BEGIN_READ: Final[Statement] = ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", ())
COMMIT: Final[Statement] = ("COMMIT", ())
ROLLBACK: Final[Statement] = ("ROLLBACK", ())

# No statement may take so long: without an answer by then the connection is lost.
SILENT_S: Final = 15.0

# A query plan that was made while a table was empty must still be good when the table is full, so
# the planner may use nothing but indexes. It may sort: rows that are locked in order are found by
# key, and without a sort it would read a whole index that has this order.
_SETTINGS: Final = {
    "enable_seqscan": "off",
    "enable_hashagg": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    "lock_timeout": "500ms",
    "idle_in_transaction_session_timeout": "10s",
    "client_min_messages": "error",
}
_READY: Final = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


def settings(*, local: bool, **more: str) -> Statement:
    given = _SETTINGS | more
    calls = ", ".join(f"set_config('{name}', '{value}', {local})" for name, value in given.items())
    return f"SELECT {calls}", ()


class Port(Protocol):
    """What a transaction needs of a connection."""

    trips: int
    target: Target

    @property
    def is_in_transaction(self) -> bool: ...

    def begin(self, *, reading: bool = False) -> list[Statement]:
        """The statements that begin a transaction."""

    def run(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """One trip: the rows of each statement."""

    def close(self) -> None: ...


class Connection:
    """Used by one thread at a time. After an error the transaction is over; after a lost connection
    only `close` is of use."""

    def __init__(self, target: Target, **settings_more: str) -> None:
        self.trips = 0
        self.target = target
        # Names of prepared statements, by their text.
        self._known: dict[str, bytes] = {}
        self._prepared = 0
        self._readers: dict[str, list[Callable[[bytes], Any]]] = {}
        self._settings = {"statement_timeout": f"{target.statement_ms}ms", **settings_more}
        self._pg = connected(target)
        self._poll = select.poll()
        if not target.is_pooled:
            self.run([settings(local=False, **self._settings)])

    @property
    def socket(self) -> int:
        return self._pg.socket

    @property
    def is_through_pooler(self) -> bool:
        """Whether somebody else speaks to the server: it named another process than the one that
        answers."""
        (((answering,),),) = self.run([("SELECT CAST(pg_backend_pid() AS bigint)", ())])
        return bool(answering != self._pg.backend_pid)

    @property
    def server_version(self) -> int:
        return self._pg.server_version

    @property
    def is_in_transaction(self) -> bool:
        return self._pg.transaction_status != pq.TransactionStatus.IDLE

    def begin(self, *, reading: bool = False) -> list[Statement]:
        """The statements that begin a transaction."""
        begin = BEGIN_READ if reading else BEGIN
        if not self.target.is_pooled:
            return [begin]
        return [begin, settings(local=True, **self._settings)]

    def run(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """One trip: the rows of each statement. One that changes rows answers one row, with their
        number."""
        self.trips += 1
        try:
            return self._run(statements)
        except psycopg.Error as fault:
            raise ConnectionLost(str(fault)) from fault

    def _run(self, statements: Sequence[Statement]) -> list[list[Row]]:
        sent = [text for statement in statements for text in self._send(*statement)]
        self._pg.pipeline_sync()
        self._flush()
        found: list[list[Row]] = []
        failed: StatementFailed | None = None
        for text in sent:
            result = self._result()
            if result.status in _READY:
                if text:
                    found.append(self._rows(text, result))
            else:
                failed = failed or self._failure(result)
                if not text:
                    # What was not prepared must be prepared the next time.
                    self._known.clear()
            self._end_of_result()
        self._result()
        if failed is not None:
            raise failed
        return found

    def _failure(self, result: abc.PGresult) -> StatementFailed | None:
        if result.status == pq.ExecStatus.PIPELINE_ABORTED:
            return None
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        message = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode()
        constraint = (result.error_field(pq.DiagnosticField.CONSTRAINT_NAME) or b"").decode()
        return StatementFailed(state, message, constraint)

    def _send(self, statement: str, values: Sequence[Any]) -> list[str]:
        """Texts of the statements whose results will come; "" for one that is only prepared."""
        text = translated(statement, self.target.schema)
        bodies = [binary(value) for value in values]
        formats = [pq.Format.BINARY] * len(bodies)
        types = [type_of(value) for value in values]
        if self.target.is_pooled:
            self._pg.send_query_params(
                text.encode(), bodies, types, formats, result_format=pq.Format.BINARY
            )
            return [text]
        name = self._known.get(text)
        sent = [text]
        if name is None:
            self._prepared += 1
            name = self._known[text] = f"ff{self._prepared}".encode()
            self._pg.send_prepare(name, text.encode(), types)
            sent = ["", text]
        self._pg.send_query_prepared(name, bodies, formats, result_format=pq.Format.BINARY)
        return sent

    def _rows(self, text: str, result: abc.PGresult) -> list[Row]:
        if result.status == pq.ExecStatus.COMMAND_OK:
            return [(result.command_tuples or 0,)]
        readers = self._readers.get(text)
        if readers is None:
            readers = [reader_of(result.ftype(column)) for column in range(result.nfields)]
            self._readers[text] = readers
        get = result.get_value
        columns = list(enumerate(readers))
        return [
            tuple(
                [
                    None if (body := get(row, column)) is None else read(body)
                    for column, read in columns
                ]
            )
            for row in range(result.ntuples)
        ]

    def notifications(self) -> list[str]:
        """The payloads that have arrived."""
        try:
            self._pg.consume_input()
            found = []
            while (notification := self._pg.notifies()) is not None:
                found.append(notification.extra.decode())
        except psycopg.Error as fault:
            raise ConnectionLost(str(fault)) from fault
        return found

    # ---- waiting

    def _flush(self) -> None:
        while self._pg.flush():
            self._await(select.POLLIN | select.POLLOUT)
            self._pg.consume_input()

    def _result(self) -> abc.PGresult:
        self._await_result()
        result = self._pg.get_result()
        if result is None:
            raise ConnectionLost("the server ended the connection")
        if result.status == pq.ExecStatus.FATAL_ERROR and self._pg.status != pq.ConnStatus.OK:
            raise ConnectionLost(result.error_message.decode(errors="replace").strip())
        return result

    def _end_of_result(self) -> None:
        self._await_result()
        self._pg.get_result()

    def _await_result(self) -> None:
        while self._pg.is_busy():
            self._await(select.POLLIN)
            self._pg.consume_input()

    def _await(self, events: int) -> None:
        self._poll.register(self._pg.socket, events)
        if not self._poll.poll(SILENT_S * 1_000):
            raise ConnectionLost(f"no answer for {SILENT_S:.0f} s")

    def close(self) -> None:
        self._pg.finish()
