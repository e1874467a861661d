"""A Postgres database as the source or target of a move."""

from collections.abc import Callable
from typing import Final, TypeVar

from flowfabric.backend.moving import Marker, closed_to_writes
from flowfabric.backend.postgres import migrations
from flowfabric.backend.postgres.connection import Connection
from flowfabric.backend.postgres.faults import CLOSED, DatabaseFault, error_for
from flowfabric.backend.postgres.opening import Opening, check_server
from flowfabric.backend.postgres.tables import PostgresTables
from flowfabric.backend.sql.moving import SEALED, SqlMovable
from flowfabric.backend.sql.tables import SqlTables
from flowfabric.backend.sql.tags import prepare_tags
from flowfabric.errors import InvalidInput

T = TypeVar("T")

# A transaction of somebody else, of a caller's too, must end first.
_TIMEOUTS: Final = {"lock_timeout": "15s", "statement_timeout": "60s"}
_LOCK: Final = f"LOCK TABLE {', '.join(f'@{name}' for name in SEALED)} IN EXCLUSIVE MODE"


class PostgresMovable(SqlMovable):
    family = "postgres"

    def __init__(self, opening: Opening, *, is_new: bool) -> None:
        """`is_new`: the schema may be made; otherwise its view of tags is left as it is."""
        super().__init__(opening.clock)
        self.where = f"{opening.target.where} schema {opening.target.schema}"
        self._opening = opening
        self._is_new = is_new
        self._names = opening.searchable
        self._connection: Connection | None = None

    def _searchable(self) -> frozenset[str]:
        return self._names

    def _open(self) -> None:
        try:
            connection = self._connection = Connection(self._opening.target, **_TIMEOUTS)
            check_server(connection)
            if not self._is_new and migrations.history_of(connection).is_empty:
                raise InvalidInput(f"{self.where}: holds no deployment")
            migrations.ensure(connection, migrates=self._is_new)
        except DatabaseFault as fault:
            raise error_for(fault, self.where) from fault
        if self._is_new:
            self._write(lambda tables: prepare_tags(tables, self._names))
        else:
            self._names = self._read(_searchable)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _tables(self) -> PostgresTables:
        assert self._connection is not None
        return PostgresTables(self._connection, self._names)

    def _read(self, read: Callable[[SqlTables], T]) -> T:
        tables = self._tables()
        tables.begin(reading=True)
        try:
            return read(tables)
        except DatabaseFault as fault:
            raise error_for(fault, self.where) from fault
        finally:
            tables.rollback()

    def _write(self, write: Callable[[SqlTables], None]) -> None:
        tables = self._tables()
        tables.begin()
        try:
            write(tables)
            tables.commit()
        except BaseException as fault:
            tables.rollback()
            if isinstance(fault, DatabaseFault):
                raise error_for(fault, self.where) from fault
            raise

    def _put_seal(self, tables: SqlTables, marker: Marker) -> None:
        text = closed_to_writes(marker.other)
        tables.change(
            "CREATE OR REPLACE FUNCTION @refuse_write() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN RAISE EXCEPTION '{text}' USING ERRCODE = '{CLOSED}'; END $$",
            (),
        )
        for name in SEALED:
            tables.change(
                f"CREATE TRIGGER sealed BEFORE INSERT OR DELETE OR UPDATE ON @{name}"
                " FOR EACH STATEMENT EXECUTE FUNCTION @refuse_write()",
                (),
            )

    def _drop_seal(self, tables: SqlTables) -> None:
        tables.change(_LOCK, ())
        for name in SEALED:
            tables.change(f"DROP TRIGGER IF EXISTS sealed ON @{name}", ())


def _searchable(tables: SqlTables) -> frozenset[str]:
    return frozenset(row[0] for row in tables.rows("SELECT name FROM searchable"))
