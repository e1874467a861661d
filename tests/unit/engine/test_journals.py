"""What the journal refuses before it asks a store."""

from typing import Any

import pytest

from flowfabric.core.journal import JournalEntry
from flowfabric.engine.attempts.journals import Journals, checked_entries
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.errors import FlowFabricError, InvalidInput, PayloadTooLarge
from tests.unit.engine.nostore import deps_without_store

ID = "{fp:7}:00000000-0000-4000-8000-000000000001"
HELD = LeaseProof(ID, "lease", 3, "attempt")


@pytest.mark.parametrize(
    ("entries", "error"),
    [
        ([], InvalidInput),
        ([JournalEntry("", 0, "d", b"")], InvalidInput),
        ([JournalEntry("step", -1, "d", b"")], InvalidInput),
        ([JournalEntry("step", 0, "d" * 129, b"")], InvalidInput),
        ([JournalEntry("step", 0, "d", "text")], InvalidInput),  # type: ignore[arg-type]
        ([JournalEntry("step", 0, "d", b"x" * (1024 * 1024 + 1))], PayloadTooLarge),
    ],
)
async def test_entries_are_checked(
    entries: list[JournalEntry], error: type[FlowFabricError]
) -> None:
    journals = Journals(deps_without_store())
    with pytest.raises(error):
        await journals.append(HELD, entries)


def test_outcomes_are_bytes_up_to_a_mebibyte() -> None:
    (entry,) = checked_entries([JournalEntry("step", 1, "d", b"x" * 1024 * 1024)])
    assert len(entry.outcome) == 1024 * 1024


@pytest.mark.parametrize(("after", "limit"), [(-1, 10), (0, 0), (0, 1_001)])
async def test_a_page_has_bounds(after: Any, limit: Any) -> None:
    with pytest.raises(InvalidInput):
        await Journals(deps_without_store()).read(ID, after, limit)
