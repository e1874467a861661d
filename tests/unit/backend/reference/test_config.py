"""Config documents: compare-and-set, one global revision, listed by prefix."""

from flowfabric.backend.base import CONFIG_TOPIC
from flowfabric.backend.reference.config import get, listed, start_put
from flowfabric.backend.types import ConfigDocument, ConfigPut, PutAnswer
from tests.unit.backend.reference.world import World


def names(world: World, prefix: str, after: str = "", limit: int = 10) -> list[str]:
    return [document.name for document in world.read(listed, prefix, after, limit)]


def test_a_put_of_the_expected_version_is_stored_and_notified(world: World) -> None:
    first = world.do(start_put, ConfigPut("lanes", 0, b"1"))
    assert first == PutAnswer(True, ConfigDocument("lanes", 1, b"1"))
    assert world.topics == {CONFIG_TOPIC}
    second = world.do(start_put, ConfigPut("lanes", 1, b"2", due_at=5))
    assert second.document == ConfigDocument("lanes", 2, b"2", 5)
    assert world.read(get, ["lanes", "none"]) == [second.document, None]


def test_a_put_of_another_version_is_answered_with_what_is_stored(world: World) -> None:
    world.do(start_put, ConfigPut("lanes", 0, b"1"))
    stored = ConfigDocument("lanes", 1, b"1")
    answers = world.answers(start_put, ConfigPut("lanes", 0, b"x"), ConfigPut("lanes", 2, b"x"))
    assert answers == [PutAnswer(False, stored)] * 2
    missing = world.do(start_put, ConfigPut("none", 1, b"x"))
    assert missing == PutAnswer(False, ConfigDocument("none", 0, b""))
    assert world.topics == set()


def test_of_two_puts_in_one_batch_the_second_sees_the_first(world: World) -> None:
    answers = world.answers(start_put, ConfigPut("a", 0, b"1"), ConfigPut("a", 0, b"2"))
    assert [getattr(answer, "applied", None) for answer in answers] == [True, False]


def test_every_put_raises_the_revision(world: World) -> None:
    world.answers(start_put, *(ConfigPut(*at, b"x") for at in (("a", 0), ("a", 1), ("b", 0))))
    world.do(start_put, ConfigPut("b", 0, b"x"))
    assert world.tables.config_revision() == 3


def test_documents_are_listed_by_prefix_in_pages(world: World) -> None:
    for name in ("lane", "lane/a", "lane/b", "lanes", "key", "lane/"):
        world.do(start_put, ConfigPut(name, 0, b"x"))
    assert names(world, "lane/") == ["lane/", "lane/a", "lane/b"]
    assert names(world, "lane/", limit=2) == ["lane/", "lane/a"]
    assert names(world, "lane/", after="lane/a") == ["lane/b"]
    assert names(world, "", limit=2) == ["key", "lane"]
    assert names(world, "lane/", limit=0) == []


def test_a_put_without_a_body_removes_the_document(world: World) -> None:
    world.do(start_put, ConfigPut("a", 0, b"1", due_at=5))
    removed = world.do(start_put, ConfigPut("a", 1, b"", due_at=5))
    assert removed == PutAnswer(True, ConfigDocument("a", 2, b""))
    assert world.topics == {CONFIG_TOPIC}
    assert world.read(get, ["a"]) == [None]
    assert names(world, "") == []


def test_a_document_that_is_not_there_cannot_be_removed(world: World) -> None:
    nothing = PutAnswer(False, ConfigDocument("a", 0, b""))
    assert world.do(start_put, ConfigPut("a", 0, b"")) == nothing
    world.answers(start_put, ConfigPut("a", 0, b"1"), ConfigPut("a", 1, b""))
    assert world.answers(start_put, ConfigPut("a", 2, b""), ConfigPut("a", 0, b"")) == [nothing] * 2
    assert world.tables.config_revision() == 2


def test_a_document_that_comes_back_never_has_an_old_version(world: World) -> None:
    world.answers(start_put, ConfigPut("a", 0, b"1"), ConfigPut("a", 1, b""))
    back = world.do(start_put, ConfigPut("a", 0, b"2"))
    assert back == PutAnswer(True, ConfigDocument("a", 3, b"2"))
    assert not world.do(start_put, ConfigPut("a", 1, b"stale")).applied
    assert world.tables.config_revision() == 3


def test_removed_documents_do_not_shorten_a_page(world: World) -> None:
    for name in "abcd":
        world.do(start_put, ConfigPut(name, 0, b"x"))
    world.answers(start_put, ConfigPut("a", 1, b""), ConfigPut("b", 1, b""))
    assert names(world, "", limit=2) == ["c", "d"]
    assert names(world, "", limit=1) == ["c"]
