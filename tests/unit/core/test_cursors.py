"""Cursors: what was written is read, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.pages import (
    CreationRange,
    check_store,
    from_text,
    read_cursor,
    to_text,
    write_cursor,
)
from flowfabric.errors import InvalidInput

QUERY = ("created", frozenset({"a", "b"}), {"kind": "etl"})


@given(st.integers(-(2**63), 2**63 - 1), st.text())
def test_a_place_is_read_as_it_was_written(value: int, name: str) -> None:
    assert read_cursor(QUERY, write_cursor(QUERY, (value, name))) == (value, name)


def test_a_cursor_is_text_that_needs_no_quoting() -> None:
    text = write_cursor(QUERY, (1_700_000_000_000, "{fp:7}:00000000-0000-4000-8000-000000000001"))
    assert text.isascii()
    assert text.replace("-", "").replace("_", "").isalnum()


@pytest.mark.parametrize(
    "other",
    [
        ("created_newest", frozenset({"a", "b"}), {"kind": "etl"}),
        ("created", frozenset({"a"}), {"kind": "etl"}),
        ("created", None, {"kind": "etl"}),
        ("created", frozenset({"a", "b"}), {"kind": "elt"}),
        None,
    ],
)
def test_a_cursor_belongs_to_its_query(other: object) -> None:
    with pytest.raises(InvalidInput, match="cursor: made by another query"):
        read_cursor(other, write_cursor(QUERY, (1, "x")))


def test_the_order_of_a_set_does_not_matter() -> None:
    names = [f"n{i}" for i in range(50)]
    text = write_cursor(frozenset(names), (1, "x"))
    assert read_cursor(frozenset(reversed(names)), text) == (1, "x")


@pytest.mark.parametrize(
    "text", ["?", "%%", "A", "W10", "e30", "bm90IGpzb24", "é", "Ä", "1:x", to_text(b'[1,"a","b"]')]
)
def test_what_nobody_wrote_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="cursor: malformed"):
        read_cursor(QUERY, text)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_a_value_that_no_store_can_hold_is_refused(value: int) -> None:
    with pytest.raises(InvalidInput, match="cursor: malformed"):
        read_cursor(QUERY, to_text(b'[1,%d,"x"]' % value))


@given(st.binary())
def test_bytes_travel_as_text(cursor: bytes) -> None:
    assert from_text(to_text(cursor)) == cursor


def test_a_position_belongs_to_its_store() -> None:
    check_store(b"", 0x01)
    check_store(b"\x01rest", 0x01)
    with pytest.raises(InvalidInput, match="cursor: made by another store"):
        check_store(b"\x04rest", 0x01)


@pytest.mark.parametrize("newest", [True, False])
@pytest.mark.parametrize(("since", "before"), [(0, 0), (3, 0), (0, 7), (3, 7), (7, 3)])
def test_a_walk_by_age_begins_and_ends_with_its_range(
    since: int, before: int, newest: bool
) -> None:
    wanted = CreationRange(since, before, newest)
    instants = list(range(1, 10))
    walk = sorted(instants, reverse=newest)
    start = wanted.start()
    if start is not None:
        # Places have ids, and none sorts behind the empty one among those of an instant.
        walk = [at for at in walk if (at < start[0] if newest else at >= start[0])]
    met = []
    for at in walk:
        if wanted.is_past(at):
            break
        met.append(at)
    expected = [at for at in instants if at >= since and (not before or at < before)]
    assert [at for at in met if wanted.holds(at)] == sorted(expected, reverse=newest)
