"""What one transaction knows on one connection: the numbers of executions, and whether a statement
has failed."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from flowfabric.backend.reference.tables import Table
from flowfabric.backend.sql.codecs import decode_record
from flowfabric.backend.sql.layout import LAYOUTS, Layout, Row
from flowfabric.core.record import Record

_OWNER: Final = "SELECT seq FROM exec WHERE execution_id = ?"
_OWNERS: Final = (
    "SELECT execution_id, seq FROM exec WHERE execution_id IN (SELECT value FROM json_each(?))"
)


class Session(ABC):
    """Other processes write too, so `begin` forgets everything at the start of a transaction.

    `fault` keeps the first error of a statement: an item that fails is answered and forgotten, but
    a transaction in which a statement failed must not be committed, and nothing more is sent.
    """

    layouts: ClassVar[dict[Table[Any, Any], Layout]] = LAYOUTS
    # The column by which an update finds a record.
    record_key: ClassVar[str] = "seq"

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self._seqs: dict[str, int] = {}

    def begin(self) -> None:
        self.fault = None
        self._seqs = {}

    # ---- statements

    @abstractmethod
    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]: ...

    @abstractmethod
    def change(self, statement: str, values: Sequence[Any]) -> int:
        """Run one statement that writes; how many rows it changed."""

    def change_each(self, statements: Sequence[tuple[str, Sequence[Any]]]) -> list[int]:
        """The same for several."""
        return [self.change(statement, values) for statement, values in statements]

    @abstractmethod
    def change_many(self, statement: str, rows: list[Row]) -> None:
        """Run a statement for many rows. Only `write` may call it: it remembers any error."""

    @abstractmethod
    def listed(self, values: Sequence[Any]) -> Any:
        """Values as the one parameter of a statement that selects among them."""

    def is_absent(self, table: Table[Any, Any], key: Any) -> bool:
        """Whether others may insert this key at the same time: it was not there, so it is inserted
        and not replaced, and the later of two transactions fails and runs again."""
        return False

    @abstractmethod
    def number(self, execution_id: str) -> int:
        """Give a new execution its number."""

    # ---- executions

    def records(self, statement: str, values: Sequence[Any]) -> list[Record]:
        """Records of a statement that selects number, id and body."""
        found: list[Record] = []
        seqs = self._seqs
        for seq, execution_id, body in self.rows(statement, values):
            seqs[execution_id] = seq
            found.append(decode_record(body))
        return found

    def seq(self, execution_id: str) -> int | None:
        """The number of an execution, None when there is no such execution."""
        seq = self._seqs.get(execution_id)
        if seq is None:
            rows = self.rows(_OWNER, (execution_id,))
            if not rows:
                return None
            seq = self._seqs[execution_id] = int(rows[0][0])
        return seq

    def find(self, execution_ids: Sequence[str]) -> None:
        """Load the numbers of many executions at once."""
        self._seqs |= dict(self.rows(_OWNERS, (self.listed(execution_ids),)))

    def forget(self, execution_id: str) -> None:
        self._seqs.pop(execution_id, None)

    def place(self, layout: Layout, key: Any) -> Row | None:
        """The stored form of a key or of its beginning; None when its execution does not exist."""
        if layout.is_owned:
            seq = self._seqs.get(key[0]) or self.seq(key[0])
            return None if seq is None else (seq, *key[1:])
        return key if type(key) is tuple else (key,)
