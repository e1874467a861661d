"""Mechanism `config`: small documents, changed by compare-and-set."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from flowfabric.backend.base import CONFIG_TOPIC
from flowfabric.backend.reference.tables import CONFIG
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.types import ConfigDocument, ConfigPut, PutAnswer

_MOST_ROWS: Final = 1_000


def get(tx: Transaction, names: Sequence[str]) -> list[ConfigDocument | None]:
    tx.fetch(CONFIG, names)
    return [_present(tx.get(CONFIG, name)) for name in names]


def start_put(tx: Transaction, puts: Sequence[ConfigPut]) -> Callable[[ConfigPut], PutAnswer]:
    tx.fetch(CONFIG, [put.name for put in puts])

    def put_one(put: ConfigPut) -> PutAnswer:
        row = tx.get(CONFIG, put.name)
        stored = _present(row) or ConfigDocument(put.name, 0, b"")
        if stored.version != put.expected or not (stored.body or put.body):
            return PutAnswer(False, stored)
        version = row.version + 1 if row else 1
        document = ConfigDocument(put.name, version, put.body, put.due_at if put.body else 0)
        tx.put(CONFIG, put.name, document)
        tx.notify(CONFIG_TOPIC)
        return PutAnswer(True, document)

    return put_one


def _present(row: ConfigDocument | None) -> ConfigDocument | None:
    """A row without a body is a document that was removed."""
    return row if row is not None and row.body else None


def listed(tx: Transaction, prefix: str, after: str, limit: int) -> list[ConfigDocument]:
    """Documents whose name begins with the prefix, by name, behind `after`."""
    return list(islice(_under(tx, prefix, after, limit), limit)) if limit > 0 else []


def _under(tx: Transaction, prefix: str, after: str, page: int) -> Iterator[ConfigDocument]:
    if after < prefix:
        # A scan starts strictly behind a name, and the prefix may be one.
        exact = _present(tx.get(CONFIG, prefix))
        if exact is not None:
            yield exact
    behind = max(prefix, after)
    while rows := tx.tables.scan(CONFIG, behind, page):
        for behind, document in rows:
            if not behind.startswith(prefix):
                return
            if document.body:
                yield document
        # Many in a row may have been removed.
        page = min(2 * page, _MOST_ROWS)
