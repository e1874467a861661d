"""What several servers have due is one page, in order and within its limit."""

from flowfabric.backend.valkey.calls import Reply
from flowfabric.backend.valkey.due import Moments, moments_in

# Behind records, flows and budgets.
CONFIG = 4


def reply(*moments: tuple[int, str], now: int = 9, has_more: bool = False) -> Reply:
    """Documents of the configuration that one server has due."""
    flat = [part for due_at, name in moments for part in (name, due_at)]
    return Reply(now, [[], [[CONFIG, has_more, *flat]] if moments else []], [])


def first(replies: list[Reply], limit: int) -> Moments:
    return moments_in(replies, limit, lambda _: True)


def places(found: Moments) -> list[tuple[int, str]]:
    return [spot[:2] for spot in found.places[CONFIG - 1]]


def test_the_first_of_all_come_in_one_order() -> None:
    found = first([reply((1, "a"), (4, "d")), reply((2, "b"), (3, "c"))], 10)
    assert places(found) == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
    assert found.next_after is None


def test_what_is_cut_off_comes_behind() -> None:
    found = first([reply((1, "a"), (4, "d")), reply((2, "b"), (3, "c"))], 3)
    assert places(found) == [(1, "a"), (2, "b"), (3, "c")]
    assert found.next_after == (3, "c")


def test_the_earliest_end_is_where_to_go_on() -> None:
    found = first([reply((1, "a"), has_more=True), reply((2, "b"), has_more=True)], 2)
    assert places(found) == [(1, "a")]
    assert found.next_after == (1, "a")


def test_what_is_not_wanted_is_passed() -> None:
    replies = [reply((1, "a"), (2, "b"), has_more=True)]
    found = moments_in(replies, 5, lambda spot: spot.id == "a")
    assert places(found) == [(1, "a")]
    assert found.next_after == (2, "b")


def test_the_earliest_clock_counts() -> None:
    assert first([reply(now=9), reply(now=7)], 5).now == 7
