"""Mechanism `config`: small documents, changed by compare-and-set."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from flowfabric.backend.base import CONFIG_TOPIC
from flowfabric.backend.reference import config
from flowfabric.backend.reference.tables import CONFIG
from flowfabric.backend.reference.work import Work
from flowfabric.backend.types import ConfigDocument, ConfigPut, PutAnswer
from flowfabric.backend.valkey import keys
from flowfabric.backend.valkey.calls import Calls, Read
from flowfabric.backend.valkey.commits import (
    Commits,
    Place,
    Snapshot,
    Stored,
    StoredTables,
    Writing,
    all_answered,
)
from flowfabric.backend.valkey.keys import stored_key, tag_of
from flowfabric.backend.valkey.notifier import StoreNotifier
from flowfabric.backend.valkey.packing import Args

_TAG: Final = tag_of(keys.CONFIG)


class ConfigMechanism:
    _calls: Calls
    _notifier: StoreNotifier

    async def config_get(self, names: Sequence[str]) -> list[ConfigDocument | None]:
        return await Commits(self._calls).read(_place(names), partial(config.get, names=names))

    async def config_put(self, puts: Sequence[ConfigPut]) -> list[PutAnswer]:
        work = Work("config_put", config.start_put, puts)
        answers = await Commits(self._calls).run(work, _place([put.name for put in puts]))
        # Who asks in this process behind this call must not be answered from before it.
        self._notifier.notify(CONFIG_TOPIC)
        return all_answered(answers)

    async def config_list(self, prefix: str, after: str, limit: int) -> list[ConfigDocument]:
        return await Commits(self._calls).read(
            _place([prefix]), lambda tx: config.listed(tx, prefix, after, limit)
        )


def _place(names: Sequence[str]) -> Place:
    return Place(keys.CONFIG, "the documents", ", ".join(names), _tables)


def _tables(snapshot: Snapshot) -> StoredTables:
    return StoredTables(
        snapshot,
        {CONFIG: Stored(_reads, _document, _put)},
        names=lambda _: stored_key("config_names", _TAG),
    )


def _reads(name: str) -> list[Read]:
    return [("HGET", stored_key("config", _TAG), name)]


def _document(name: str, stored: bytes) -> ConfigDocument:
    version, due_at, body = stored.split(b" ", 2)
    return ConfigDocument(name, int(version), body, int(due_at))


def _put(writing: Writing, args: Args) -> list[Any]:
    document: ConfigDocument = writing.value
    return ["document", writing.key, document.version, document.due_at, args.put(document.body)]
