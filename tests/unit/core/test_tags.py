"""Tags: free at submission, under a caller's prefix later."""

from collections.abc import Mapping
from uuid import UUID

import pytest

from flowfabric.core.tags import check_tag_keys, submitted_tags
from flowfabric.errors import InvalidInput, InvalidTagKey


@pytest.mark.parametrize("key", ["app.task_id", "app.sub.field", "a._", "a1_.0", "a.b.", "a.b..c"])
def test_a_key_with_a_prefix_is_accepted(key: str) -> None:
    check_tag_keys([key])
    check_tag_keys({"app.first": "1", key: "2"})


@pytest.mark.parametrize(
    "key",
    ["", ".", "app.", "app..x", "App.x", "a-b.c", "nodot", "_a.b", "1a.b", "app.X", "a.b\n", "ä.b"],
)
def test_another_key_is_refused_and_named(key: str) -> None:
    with pytest.raises(InvalidTagKey) as refusal:
        check_tag_keys({"app.fine": "1", key: "2"})
    assert refusal.value.detail == key


def test_a_key_that_is_not_text_is_refused() -> None:
    with pytest.raises(InvalidTagKey, match="7"):
        check_tag_keys([7])  # type: ignore[list-item]


def test_no_tags_at_all_is_invalid_input() -> None:
    with pytest.raises(InvalidInput, match="tags: expected at least one"):
        check_tag_keys({})


@pytest.mark.parametrize(
    ("value", "tags"),
    [
        (None, {}),
        ({}, {}),
        ({"app.x": "1", "nodot": "", "Ключ": "значение"}, None),
        (
            {"n": 7, "f": 1.5, "t": True, "o": False, "z": None},
            {"n": "7", "f": "1.5", "t": "true", "o": "false", "z": ""},
        ),
        ({"id": UUID(int=0)}, {"id": "00000000-0000-0000-0000-000000000000"}),
    ],
)
def test_submitted_tags_keep_their_keys_and_become_text(
    value: Mapping[str, object] | None, tags: dict[str, str] | None
) -> None:
    assert submitted_tags(value) == (value if tags is None else tags)


@pytest.mark.parametrize("value", ["a=b", [("a", "b")], 7, True, [], ""])
def test_tags_that_are_no_object_are_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="tags: expected an object"):
        submitted_tags(value)


@pytest.mark.parametrize("tag", [[], {}, {"a": 1}, b"bytes", ("x",), {1}])
def test_a_value_without_an_obvious_text_is_refused(tag: object) -> None:
    with pytest.raises(InvalidInput, match="tags: owner: expected a string"):
        submitted_tags({"owner": tag})


@pytest.mark.parametrize("tags", [{7: "x"}, {None: "x"}])
def test_a_submitted_key_must_be_text(tags: object) -> None:
    with pytest.raises(InvalidInput, match="tags: a key: expected a string"):
        submitted_tags(tags)


@pytest.mark.parametrize("tags", [{"\ud800": "x"}, {"x": "\ud800"}])
def test_tags_no_store_could_hold_are_refused(tags: object) -> None:
    with pytest.raises(InvalidInput, match="not encodable"):
        submitted_tags(tags)
