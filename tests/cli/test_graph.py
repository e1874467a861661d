"""A flow as text."""

from flowfabric.cli.flows import DrawnMember, depths, lines


def test_members_stand_by_their_longest_way() -> None:
    members = [
        DrawnMember("d", "join", "waiting", ("b", "c")),
        DrawnMember("a", "start", "completed"),
        DrawnMember("c", "short", "failed", ("a",)),
        DrawnMember("b", "long", "active", ("x",)),
        DrawnMember("x", "middle", "completed", ("a",)),
    ]
    assert depths(members) == {"a": 0, "c": 1, "x": 1, "b": 2, "d": 3}
    assert [line.plain for line in lines(members)] == [
        "● start  completed",
        "  ● middle  completed  after start",
        "  ✗ short  failed  after start",
        "    ◐ long  active  after middle",
        "      ○ join  waiting  after long, short",
    ]


def test_sources_that_are_not_shown_are_dots() -> None:
    assert (
        lines([DrawnMember("a", "last", "waiting", ("gone",))])[0].plain
        == "○ last  waiting  after …"
    )
