"""What several servers have due is one page, in order and within its limit."""

from flowfabric.backend.types import ConfigDocument, DuePage
from flowfabric.backend.valkey.due_pages import merged


def page(*moments: tuple[int, str], now: int = 9, after: tuple[int, str] | None = None) -> DuePage:
    config = tuple(ConfigDocument(name, 1, b"{}", due_at) for due_at, name in moments)
    return DuePage((), (), now, after, config=config, budgets=moments)


def test_the_first_of_all_come_in_one_order() -> None:
    found = merged([page((1, "a"), (4, "d")), page((2, "b"), (3, "c"))], 10)
    assert found.budgets == ((1, "a"), (2, "b"), (3, "c"), (4, "d"))
    assert [one.name for one in found.config] == ["a", "b", "c", "d"]
    assert found.next_after is None


def test_what_is_cut_off_comes_behind() -> None:
    found = merged([page((1, "a"), (4, "d")), page((2, "b"), (3, "c"))], 3)
    assert found.budgets == ((1, "a"), (2, "b"), (3, "c"))
    assert found.next_after == (3, "c")


def test_the_earliest_end_is_where_to_go_on() -> None:
    found = merged([page((1, "a"), after=(1, "a")), page((2, "b"), after=(2, "b"))], 2)
    assert found.next_after == (1, "a")


def test_the_earliest_clock_counts() -> None:
    assert merged([page(now=9), page(now=7)], 5).now == 7
