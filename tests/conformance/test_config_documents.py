"""Config documents: compare-and-set, removal, and a time of their own."""

from flowfabric.backend.base import Backend
from flowfabric.backend.types import ConfigDocument, ConfigPut
from tests.clock import VirtualClock


async def put(backend: Backend, name: str, expected: int, body: bytes, due_at: int = 0) -> bool:
    (answer,) = await backend.config_put([ConfigPut(name, expected, body, due_at)])
    return answer.applied


async def due_names(backend: Backend) -> list[str]:
    return [document.name for document in (await backend.due(100)).config]


async def test_a_document_is_due_from_its_instant_on_with_its_body(
    backend: Backend, clock: VirtualClock
) -> None:
    at = clock() + 1_000
    await put(backend, "schedule/b", 0, b"b", at)
    await put(backend, "schedule/a", 0, b"a", at)
    await put(backend, "schedule/early", 0, b"e", at - 1)
    await put(backend, "schedule/late", 0, b"l", at + 1)
    await put(backend, "lanes", 0, b"x")
    assert await due_names(backend) == []
    clock.advance(1_000)
    page = await backend.due(100, None, frozenset({3}))
    assert [one.name for one in page.config] == ["schedule/early", "schedule/a", "schedule/b"]
    assert page.config[1] == ConfigDocument("schedule/a", 1, b"a", at)
    assert page.next_after is None


async def test_due_documents_are_walked_in_pages(backend: Backend, clock: VirtualClock) -> None:
    for number in range(5):
        await put(backend, f"schedule/{number}", 0, b"x", clock() - 5 + number // 2)
    after, seen = None, []
    while True:
        page = await backend.due(2, after)
        seen += [one.name for one in page.config]
        after = page.next_after
        if after is None:
            break
    assert seen == [f"schedule/{number}" for number in range(5)]


async def test_a_put_moves_the_time_or_takes_it_away(backend: Backend, clock: VirtualClock) -> None:
    await put(backend, "a", 0, b"1", clock())
    await put(backend, "b", 0, b"1", clock())
    assert await put(backend, "a", 1, b"2", clock() + 1)
    assert await put(backend, "b", 1, b"2")
    assert await due_names(backend) == []
    clock.advance(1)
    assert await due_names(backend) == ["a"]


async def test_a_removed_document_is_gone_for_every_reader(
    backend: Backend, clock: VirtualClock
) -> None:
    await put(backend, "a", 0, b"1", clock())
    await put(backend, "b", 0, b"1")
    assert not await put(backend, "a", 2, b"")
    assert await put(backend, "a", 1, b"", clock())
    assert await backend.config_get(["a", "b"]) == [None, ConfigDocument("b", 1, b"1")]
    assert [one.name for one in await backend.config_list("", "", 1)] == ["b"]
    assert await due_names(backend) == []
    assert not await put(backend, "a", 0, b"")
    assert not await put(backend, "a", 2, b"stale")


async def test_a_document_that_comes_back_goes_on_counting(backend: Backend) -> None:
    await put(backend, "a", 0, b"1")
    await put(backend, "a", 1, b"")
    assert await put(backend, "a", 0, b"2")
    assert not await put(backend, "a", 1, b"by somebody who saw the first")
    assert await backend.config_get(["a"]) == [ConfigDocument("a", 3, b"2")]
