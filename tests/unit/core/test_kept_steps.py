"""Which entries of a journal a replay keeps."""

import pytest

from flowfabric.core.journal import (
    JournalEntry,
    child_of,
    failed_step,
    place_of_failure,
    place_of_step,
)
from flowfabric.errors import InvalidInput


def entry(name: str, seq: int = 1, outcome: bytes = b"{}") -> JournalEntry:
    return JournalEntry(name, seq, "d", outcome)


NAMES = [
    ("look", 1), ("ff.failed pay", 1), ("ff.sleep", 1), ("pay", 2), ("pay#2", 1), ("look", 2),
]  # fmt: skip
ROWS = [(number, entry(*one)) for number, one in enumerate(NAMES, start=1)]


@pytest.mark.parametrize(
    ("step", "place"),
    [("look", 1), ("pay", 2), ("pay#1", 2), ("pay#2", 5), ("ff.sleep", 3), ("look#2", 6)],
)
def test_a_step_is_found_by_its_name_and_use(step: str, place: int) -> None:
    assert place_of_step(ROWS, step) == place


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("pya", "no step 'pya' is recorded; there is 'pay'"),
        ("look#3", "'look#2'"),
        ("look#x", "no step 'look#x'"),
        ("nothing like it", "there is 'look', 'look#2', 'pay'"),
    ],
)
def test_an_unknown_step_is_refused_with_those_that_are_near(step: str, told: str) -> None:
    with pytest.raises(InvalidInput, match="steps_until") as caught:
        place_of_step(ROWS, step)
    assert told in caught.value.detail


def test_nothing_is_near_in_an_empty_journal() -> None:
    with pytest.raises(InvalidInput, match=r"no step 'a' is recorded$"):
        place_of_step([], "a")


def test_the_failure_that_ended_an_execution_is_found() -> None:
    assert failed_step("a#b#3") == ("a#b", 3)
    assert place_of_failure(ROWS, ("pay", 1)) == 2
    assert place_of_failure(ROWS, ("look", 1)) == 0


@pytest.mark.parametrize(
    ("name", "outcome", "child"),
    [
        ("ff.child crawl", b'{"call":"crawl()","value":"{fp:1}:x"}', "{fp:1}:x"),
        ("crawl", b'{"value":"{fp:1}:x"}', ""),
        ("ff.child crawl", b'{"value":7}', ""),
        ("ff.child crawl", b"\xff", ""),
    ],
)
def test_a_child_is_read_from_the_entry_of_its_submit(
    name: str, outcome: bytes, child: str
) -> None:
    assert child_of(entry(name, 1, outcome)) == child
