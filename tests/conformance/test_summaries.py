"""The rolling summary: patches merged in order, under a version, all or nothing."""

import asyncio
import json
from typing import Any, NamedTuple

import msgspec
import pytest

from flowfabric.backend.base import Backend
from flowfabric.backend.types import Append, SummaryPut
from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine import engine_on
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.errors import (
    Corruption,
    FlowFabricError,
    InvalidInput,
    NotFound,
    RetentionLimitExceeded,
    StaleOwnerCannotAppend,
    StreamClosed,
)
from flowfabric.operations.streams import Frame, Streams
from tests.conformance.driver import LEASE_MS, NOWHERE, Driver, fence, fenced, refused
from tests.conformance.streaming import (
    SOON_S,
    append,
    frame,
    live,
    patch,
    payloads,
    read,
)
from tests.proofs import proves


async def apply(driver: Driver, held: LeaseProof, *patches: bytes) -> int | None:
    frames = [patch(text) for text in patches]
    return (await driver.engine.streams.append(held, 0, frames)).summary_version


class Found(NamedTuple):
    document: bytes
    version: int
    patch_kind: str
    last_updated_ms: int
    first_applied_ms: int


async def summary(driver: Driver, execution_id: str, attempt: int = 0) -> Found:
    found = await driver.engine.streams.read_summary(execution_id, attempt)
    return Found(bytes(found.document), *msgspec.structs.astuple(found)[1:])


async def document(driver: Driver, held: LeaseProof) -> Any:
    return json.loads((await summary(driver, held.execution_id)).document)


@pytest.fixture
def neighbour(driver: Driver, backend: Backend) -> Driver:
    """Another process on the same store, as far as what it remembers goes."""
    engine = engine_on(backend)
    return Driver(engine, driver.clock, TimerSweep(engine))


# ---- merging


@proves(Streams.read_summary)
async def test_patches_merge_and_count(driver: Driver) -> None:
    held = (await driver.started()).proof
    began = driver.clock()
    assert await apply(driver, held, b'{"a":1,"b":{"c":2}}') == 1
    now = driver.clock.advance(7)
    assert await apply(driver, held, b'{"a":null,"b":{"d":3}}') == 2
    found = await summary(driver, held.execution_id)
    assert (found.document, found.version) == (b'{"b":{"c":2,"d":3}}', 2)
    assert found.patch_kind == "json-merge-patch"
    assert (found.first_applied_ms, found.last_updated_ms) == (began, now)


@pytest.mark.parametrize(
    ("patches", "expected"),
    [
        ([b'{"x":"__ff_null__"}'], b'{"x":null}'),
        ([b'{"x":["__ff_null__",{"y":"__ff_null__"}]}'], b'{"x":[null,{"y":null}]}'),
        ([b'{"b":{"c":1}}', b'{"b":{}}'], b'{"b":{"c":1}}'),
        ([b'{"b":1}', b'{"b":{}}'], b'{"b":{}}'),
        ([b'{"a":[1,2]}', b'{"a":[{"x":1}]}'], b'{"a":[{"x":1}]}'),
        ([b'{"a":[1,2]}', b'{"a":[]}'], b'{"a":[]}'),
        ([b'{"n":1152921504606846977}', b'{"m":1}'], b'{"n":1152921504606846977,"m":1}'),
        ([b'{"__ff_null__":"__ff_null__"}'], b'{"__ff_null__":null}'),
        ([b"{}"], b"{}"),
    ],
)
async def test_what_a_patch_does(driver: Driver, patches: list[bytes], expected: bytes) -> None:
    held = (await driver.started()).proof
    for text in patches:
        await apply(driver, held, text)
    assert (await summary(driver, held.execution_id)).document == expected
    # Several patches of one call are so many versions of one step.
    other = (await driver.started()).proof
    assert await apply(driver, other, *patches) == len(patches)
    assert (await summary(driver, other.execution_id)).document == expected


async def test_a_patch_is_also_a_frame(driver: Driver) -> None:
    held = (await driver.started()).proof
    answer = await driver.engine.streams.append(
        held, 0, [frame(b"a"), patch(b'{"n":1}'), live(), patch(b'{"n":2}', ts=5)]
    )
    assert (len(answer.ids), answer.frame_count, answer.summary_version) == (4, 4, 2)
    assert (await driver.engine.streams.append(held, 0, [frame()])).summary_version is None
    page = await read(driver, held.execution_id, visibility="exclude_best_effort")
    shown = [(stored.frame.mode, stored.frame.summary_version) for stored in page.frames]
    assert shown == [("durable", 0), ("summary", 1), ("summary", 2), ("durable", 0)]
    assert payloads(page) == [b"a", b'{"n":1}', b'{"n":2}', b"x"]


async def test_before_the_first_patch_there_is_none(driver: Driver) -> None:
    held = (await driver.started()).proof
    await append(driver, held, frame(), live())
    for own, attempt in ((held.execution_id, 0), (held.execution_id, 5), (NOWHERE, 0)):
        with refused(NotFound):
            await driver.engine.streams.read_summary(own, attempt)


async def test_the_document_outlives_frames_and_attempt(driver: Driver) -> None:
    held = (await driver.started()).proof
    for start in range(0, 200, 20):
        await apply(driver, held, *(b'{"n":%d}' % n for n in range(start, start + 20)))
    assert 64 <= len((await read(driver, held.execution_id, count_limit=500)).frames) <= 84
    await driver.engine.outcomes.complete(held)
    found = await summary(driver, held.execution_id)
    assert (found.document, found.version) == (b'{"n":199}', 200)


async def test_each_attempt_has_a_document_of_its_own(driver: Driver) -> None:
    first = await driver.started()
    await apply(driver, first.proof, b'{"from":"first"}')
    await driver.pass_time(LEASE_MS)
    second = await driver.claim()
    answer = await driver.engine.streams.append(second.proof, 1, [patch(b'{"by":"second"}')])
    assert answer.summary_version == 1
    own = first.execution_id
    assert (await summary(driver, own, 0)).document == b'{"from":"first"}'
    assert (await summary(driver, own, 1)).document == b'{"by":"second"}'


async def test_a_resumed_attempt_goes_on_with_its_document(driver: Driver) -> None:
    first = await driver.started()
    await apply(driver, first.proof, b'{"a":1}', b'{"b":2}')
    await driver.engine.outcomes.delay(first.proof, for_ms=0)
    second = await driver.claim()
    assert await apply(driver, second.proof, b'{"c":3}') == 3
    assert await document(driver, second.proof) == {"a": 1, "b": 2, "c": 3}


# ---- what is refused


def deep(objects: int) -> bytes:
    return b'{"a":' * objects + b"{}" + b"}" * objects


@pytest.mark.parametrize(
    ("bad", "error", "detail"),
    [
        (patch(b"{}", patch_kind="json-patch"), InvalidInput, "unsupported patch_kind"),
        (patch(b"{"), InvalidInput, "patch payload is not valid JSON"),
        (patch(b"\xff"), InvalidInput, "patch payload is not valid JSON"),
        (patch(b"[]"), InvalidInput, "patch must be a JSON object"),
        (patch(b"null"), InvalidInput, "patch must be a JSON object"),
        (patch(deep(17)), InvalidInput, "patch_depth_exceeded"),
        (
            patch(b'{"a":' + b"[" * 32 + b"]" * 32 + b"}"),
            RetentionLimitExceeded,
            "summary document: at most 32 levels",
        ),
    ],
)
async def test_a_bad_patch_writes_nothing(
    driver: Driver, bad: Frame, error: type[FlowFabricError], detail: str
) -> None:
    held = (await driver.started()).proof
    await append(driver, held, patch(b'{"a":1}', patch_kind="json-merge-patch"))
    before = await summary(driver, held.execution_id)
    driver.clock.advance(5)
    with refused(error, detail):
        await append(driver, held, frame(b"beside"), patch(b'{"b":1}'), bad)
    assert await summary(driver, held.execution_id) == before
    assert payloads(await read(driver, held.execution_id)) == [b'{"a":1}']
    answer = await driver.engine.streams.append(held, 0, [patch(deep(16))])
    assert (answer.frame_count, answer.summary_version) == (2, 2)


async def test_a_document_grows_to_256_kib_and_not_a_byte_more(driver: Driver) -> None:
    held = (await driver.started()).proof
    text = b"x" * 60_000
    for name in (b"a", b"b", b"c", b"d"):
        await apply(driver, held, b'{"%s":"%s"}' % (name, text))
    room = 256 * 1024 - len(b'{"a":"","b":"","c":"","d":"","e":""}') - 4 * len(text)
    fitting, too_large = b'{"e":"%s"}' % (b"y" * room), b'{"e":"%s"}' % (b"y" * (room + 1))
    before = await summary(driver, held.execution_id)
    for frames in ([patch(too_large)], [frame(), patch(fitting), patch(b'{"f":1}')]):
        with refused(RetentionLimitExceeded):
            await append(driver, held, *frames)
    assert await summary(driver, held.execution_id) == before
    assert await apply(driver, held, fitting) == 5
    assert len((await summary(driver, held.execution_id)).document) == 256 * 1024
    assert len((await read(driver, held.execution_id)).frames) == 5


async def test_who_may_not_append_is_told_so_whatever_the_patch_would_do(driver: Driver) -> None:
    huge = [patch(b'{"%d":"%s"}' % (n, b"x" * 65_000)) for n in range(5)]
    done = await driver.reach("completed")
    with refused(StreamClosed):
        await append(driver, done, *huge)
    held = (await driver.started()).proof
    await apply(driver, held, b'{"a":1}')
    with refused(RetentionLimitExceeded):
        await append(driver, held, *huge)
    await driver.pass_time(LEASE_MS)
    for patches in ([patch(b"{}")], huge):
        with refused(StaleOwnerCannotAppend):
            await append(driver, held, *patches)


async def test_a_document_that_cannot_be_read_is_left_alone(driver: Driver) -> None:
    held = (await driver.started()).proof
    item = Append(
        execution_id=held.execution_id,
        attempt_index=0,
        fence=fence(held),
        frames=(frame(b"{}", frame_type="summary", mode="summary"),),
        summary=SummaryPut(0, b"{nonsense"),
    )
    await driver.engine.deps.store.append(item)
    before = await summary(driver, held.execution_id)
    with refused(Corruption):
        await apply(driver, held, b'{"a":1}')
    assert await summary(driver, held.execution_id) == before
    assert len((await read(driver, held.execution_id)).frames) == 1


# ---- repeats and races


async def test_a_repeated_patch_counts_once(driver: Driver, neighbour: Driver) -> None:
    held = (await driver.started()).proof
    first = await append(driver, held, patch(b'{"a":1}', seq=1))
    await append(driver, held, patch(b'{"a":null}', seq=2))
    for side in (driver, neighbour, driver):
        assert await append(side, held, patch(b'{"a":1}', seq=1)) == first
        assert (await summary(driver, held.execution_id)).document == b"{}"
    assert await apply(driver, held, b'{"b":2}') == 3
    assert await apply(neighbour, held, b'{"c":3}') == 4
    assert await document(driver, held) == {"b": 2, "c": 3}


async def test_of_a_call_that_is_partly_a_repeat_only_the_rest_is_merged(
    driver: Driver, neighbour: Driver
) -> None:
    held = (await driver.started()).proof
    one, two = patch(b'{"a":1}', seq=1), patch(b'{"a":null,"b":2}', seq=2)
    await append(driver, held, one)
    await append(driver, held, two)
    for n, side in enumerate((driver, neighbour), start=3):
        new = patch(b'{"n":%d}' % n, seq=n)
        answer = await side.engine.streams.append(held, 0, [one, frame(b"beside"), new, two, new])
        assert (answer.summary_version, answer.ids[2]) == (n, answer.ids[4])
        assert await document(driver, held) == {"b": 2, "n": n}
    assert len((await read(driver, held.execution_id)).frames) == 6


async def test_a_repeat_is_recognised_although_it_would_no_longer_fit(driver: Driver) -> None:
    held = (await driver.started()).proof
    text = b"x" * 65_000
    big = [patch(b'{"%d":"%s"}' % (n, text), seq=n) for n in range(1, 5)]
    await append(driver, held, *big)
    await append(driver, held, patch(b'{"1":null}', seq=5), patch(b'{"other":"%s"}' % text, seq=6))
    answer = await driver.engine.streams.append(held, 0, big)
    assert (answer.frame_count, answer.summary_version) == (6, 6)


async def test_patches_of_two_processes_are_all_merged(driver: Driver, neighbour: Driver) -> None:
    held = (await driver.started()).proof
    async with asyncio.timeout(SOON_S):
        for n in range(10):
            side = (driver, neighbour)[n % 2]
            await apply(side, fenced(held), b'{"turn %d":{"by":%d}}' % (n, n % 2))
        await asyncio.gather(*(apply(driver, held, b'{"many":{"%d":true}}' % n) for n in range(50)))
    found = await summary(driver, held.execution_id)
    assert found.version == 60
    assert len(json.loads(found.document)["many"]) == 50
    versions = [
        stored.frame.summary_version for stored in (await read(driver, held.execution_id)).frames
    ]
    assert versions == list(range(1, 61))
