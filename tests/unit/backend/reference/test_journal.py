"""The journal: each named step once, under the lease, in order of arrival."""

from typing import Any

import msgspec
import pytest

from flowfabric.backend.reference import journal as journal_module
from flowfabric.backend.reference.claims import start_apply
from flowfabric.backend.reference.journal import read_journal, start_journal
from flowfabric.backend.types import JournalAppend, Journaled
from flowfabric.core.journal import JournalEntry
from flowfabric.core.plan import Refused
from flowfabric.core.record import Record
from flowfabric.core.rules.replay import ReplayRequest, Scene, replay
from flowfabric.errors import Nondeterminism, PayloadTooLarge, ResourceExhausted
from tests.unit.backend.reference.world import LEASE_MS, World, fence_of


def entry(
    name: str = "step", seq: int = 1, digest: str = "d", outcome: bytes = b"1"
) -> JournalEntry:
    return JournalEntry(name, seq, digest, outcome)


def appending(record: Record, *entries: JournalEntry) -> JournalAppend:
    return JournalAppend(record.execution_id, fence_of(record), entries)


def read(world: World, record: Record, after: int = 0, limit: int = 100) -> list[str]:
    page = world.read(read_journal, record.execution_id, after, limit)
    return [f"{number} {found.name}/{found.seq}" for number, found in page.rows]


def test_entries_are_read_in_order_of_arrival(world: World) -> None:
    held = world.started()
    world.do(start_journal, appending(held, entry("z"), entry("a")))
    world.do(start_journal, appending(held, entry("a", 2)))
    assert read(world, held) == ["1 z/1", "2 a/1", "3 a/2"]
    assert read(world, held, after=1, limit=1) == ["2 a/1"]


def test_the_same_step_again_answers_what_is_stored(world: World) -> None:
    held = world.started()
    first = world.do(start_journal, appending(held, entry(outcome=b"1")))
    again = world.do(start_journal, appending(held, entry(outcome=b"2"), entry(seq=2)))
    assert first == Journaled((None,), world.clock())
    assert again == Journaled((entry(outcome=b"1"), None), world.clock())


def test_another_digest_is_an_error_that_names_both_and_keeps_nothing(world: World) -> None:
    held = world.started()
    world.do(start_journal, appending(held, entry(digest="old")))
    with pytest.raises(Nondeterminism) as caught:
        world.do(start_journal, appending(held, entry("fresh"), entry(digest="new")))
    assert caught.value.details == {"recorded": "old", "given": "new"}
    assert read(world, held) == ["1 step/1"]


def test_an_address_twice_in_one_call_is_one_entry(world: World) -> None:
    held = world.started()
    answer = world.do(start_journal, appending(held, entry(), entry(outcome=b"2")))
    assert answer == Journaled((None, entry()), world.clock())
    with pytest.raises(Nondeterminism):
        world.do(start_journal, appending(held, entry(seq=2), entry(seq=2, digest="other")))


def test_numbers_go_on_over_items_of_a_batch_that_fail(world: World) -> None:
    held = world.started()
    world.do(start_journal, appending(held, entry()))
    items = [
        appending(held, entry("a")),
        appending(held, entry("b"), entry(digest="other")),
        appending(held, entry("c")),
    ]
    answers = world.answers(start_journal, *items)
    assert isinstance(answers[1], Nondeterminism)
    assert read(world, held) == ["1 step/1", "2 a/1", "3 c/1"]


@pytest.mark.parametrize(
    "stale", [{"lease_id": "another"}, {"lease_epoch": 7}, {"attempt_id": "another"}]
)
def test_only_the_lease_holder_may_write(world: World, stale: dict[str, Any]) -> None:
    held = world.started()
    other = msgspec.structs.replace(held, **stale)
    assert world.do(start_journal, appending(other, entry())) == Refused(held, world.clock())
    world.clock.advance(LEASE_MS)
    assert world.do(start_journal, appending(held, entry())) == Refused(held, world.clock())
    assert read(world, held) == []


def test_an_entry_over_the_limit_fails(world: World) -> None:
    held = world.started()
    world.do(start_journal, appending(held, entry(outcome=b"x" * 1024 * 1024)))
    with pytest.raises(PayloadTooLarge):
        world.do(start_journal, appending(held, entry(seq=2, outcome=b"x" * (1024 * 1024 + 1))))


def test_a_full_journal_takes_repeats_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "MAX_ENTRIES", 2)
    held = world.started()
    world.do(start_journal, appending(held, entry(seq=1), entry(seq=2)))
    with pytest.raises(ResourceExhausted, match="journal"):
        world.do(start_journal, appending(held, entry(seq=3)))
    assert world.do(start_journal, appending(held, entry(seq=2))) == Journaled(
        (entry(seq=2),), world.clock()
    )


def test_a_replay_begins_an_empty_journal(world: World) -> None:
    held = world.started()
    world.do(start_journal, appending(held, entry(digest="old")))
    done = world.complete(held)
    world.do(start_apply, replay(done, ReplayRequest(), Scene(world.clock())))
    (again,) = world.claim()
    world.do(start_journal, appending(again, entry(digest="new")))
    assert read(world, again) == ["1 step/1"]
