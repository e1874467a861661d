"""The view `tag` follows what a deployment searches by."""

from pathlib import Path

from flowfabric.backend.reference.tables import RECORDS
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.core.record import Record
from tests.unit.backend.sqlite.homes import Home, Item, a_home, work
from tests.unit.backend.sqlite.samples import a_record

TAGS = {"app.team": "a", "app.case": "7"}


def keep(record: Record) -> Item:
    return lambda tx: tx.insert(RECORDS, record.execution_id, record)


def drop(record: Record) -> Item:
    def item(tx: Transaction) -> None:
        tx.record(record.execution_id)
        tx.put(RECORDS, record.execution_id, None)

    return item


async def listed(home: Home, name: str) -> int:
    found = await home.read(
        lambda tx: tx.tables.tagged("default", (name, TAGS[name]), None, 2_000, newest=False)
    )
    return len(found)


async def test_what_becomes_searchable_shows_what_was_there_before(tmp_path: Path) -> None:
    file = tmp_path / "home.db"
    records = [a_record(n, tags=TAGS) for n in range(1_200)]
    async with a_home(file, searchable=frozenset({"app.team"})) as home:
        await home.write(work(*map(keep, records)))
        assert (await listed(home, "app.team"), await listed(home, "app.case")) == (1_200, 0)
    async with a_home(file, searchable=frozenset({"app.case"})) as home:
        assert (await listed(home, "app.team"), await listed(home, "app.case")) == (0, 1_200)
        await home.write(work(drop(records[0])))
        assert await listed(home, "app.case") == 1_199
    async with a_home(file) as home:
        assert await listed(home, "app.case") == 0
