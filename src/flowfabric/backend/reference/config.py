"""Mechanism `config`: small documents, changed by compare-and-set."""

from collections.abc import Callable, Sequence

from flowfabric.backend.base import CONFIG_BELL
from flowfabric.backend.reference.tables import CONFIG
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.types import ConfigDocument, ConfigPut, PutAnswer


def get(tx: Transaction, names: Sequence[str]) -> list[ConfigDocument | None]:
    tx.fetch(CONFIG, names)
    return [tx.get(CONFIG, name) for name in names]


def start_put(tx: Transaction, puts: Sequence[ConfigPut]) -> Callable[[ConfigPut], PutAnswer]:
    tx.fetch(CONFIG, [put.name for put in puts])

    def put_one(put: ConfigPut) -> PutAnswer:
        stored = tx.get(CONFIG, put.name)
        version = stored.version if stored else 0
        if version != put.expected:
            return PutAnswer(False, stored or ConfigDocument(put.name, 0, b""))
        document = ConfigDocument(put.name, version + 1, put.body, put.due_at)
        tx.put(CONFIG, put.name, document)
        tx.ring(CONFIG_BELL)
        return PutAnswer(True, document)

    return put_one


def listed(tx: Transaction, prefix: str, after: str, limit: int) -> list[ConfigDocument]:
    """Documents whose name begins with the prefix, by name, behind `after`."""
    found: list[ConfigDocument] = []
    if after < prefix:
        # A scan starts strictly behind a name, and the prefix may be one.
        exact = tx.get(CONFIG, prefix)
        found += [exact] if exact else []
    rows = tx.tables.scan(CONFIG, max(prefix, after), max(0, limit))
    found += [document for name, document in rows if name.startswith(prefix)]
    return found[: max(0, limit)]
