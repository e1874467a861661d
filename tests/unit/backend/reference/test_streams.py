"""Frames of an attempt's stream: who may append, ids, trims, expiry and the summary."""

from typing import Any

import msgspec
import pytest

from flowfabric.backend.base import stream_topic
from flowfabric.backend.reference import streams
from flowfabric.backend.reference.claims import start_apply
from flowfabric.backend.reference.streams import read_frames, read_summary, start_append
from flowfabric.backend.types import Append, Appended, FrameRange, StreamRefused, SummaryPut, Trim
from flowfabric.core.record import Record
from flowfabric.core.rules.operators import revoke
from flowfabric.core.streams import FORGOTTEN, NUMBERS_KEPT
from flowfabric.errors import InvalidInput, RetentionLimitExceeded
from flowfabric.operations.streams import Frame, FramePage
from tests.unit.backend.reference.world import LEASE_MS, World, fence_of


def frame(payload: bytes = b"x", **fields: Any) -> Frame:
    return Frame(frame_type="stdout", payload=payload, **fields)


def appending(record: Record, *frames: Frame, trim: Trim | None = None, **fields: Any) -> Append:
    return Append(
        execution_id=record.execution_id,
        attempt_index=record.attempt_index,
        fence=fence_of(record),
        frames=frames or (frame(),),
        trims=(trim,) if trim else (),
        **fields,
    )


def append(world: World, record: Record, *frames: Frame, **fields: Any) -> Appended:
    answer = world.do(start_append, appending(record, *frames, **fields))
    assert isinstance(answer, Appended)
    return answer


def frames(world: World, record: Record, after: str = "", to: str = "", n: int = 100) -> FramePage:
    wanted = FrameRange(record.execution_id, record.attempt_index, after, to, n)
    return world.read(read_frames, wanted)


def payloads(world: World, record: Record) -> list[bytes]:
    return [stored.frame.payload for stored in frames(world, record).frames]


def test_the_lease_holder_appends_and_the_stream_topic_is_notified(world: World) -> None:
    held = world.started()
    answer = append(world, held, frame(b"a"), frame(b"b"))
    now = world.clock()
    assert answer == Appended((f"{now}-0", f"{now}-1"), 2, 2, now)
    assert payloads(world, held) == [b"a", b"b"]
    assert world.topics == {stream_topic(held.execution_id, 0)}


def test_a_frame_without_a_time_of_its_own_gets_the_stores(world: World) -> None:
    held = world.started()
    append(world, held, frame(), frame(ts=7))
    assert [stored.frame.ts for stored in frames(world, held).frames] == [world.clock(), 7]


@pytest.mark.parametrize(
    "stale",
    [
        {"lease_id": "another"},
        {"lease_epoch": 7},
        {"attempt_id": "another"},
        {"attempt_index": 1},
    ],
)
def test_anybody_else_is_refused_and_nothing_is_written(
    world: World, stale: dict[str, Any]
) -> None:
    held = world.started()
    answer = world.do(start_append, appending(msgspec.structs.replace(held, **stale)))
    assert answer == StreamRefused(held, world.clock())
    assert payloads(world, held) == []
    assert world.topics == set()


def test_an_unknown_execution_is_refused_with_nothing_seen(world: World) -> None:
    held = world.started()
    unknown = msgspec.structs.replace(appending(held), execution_id="{fp:0}:nobody")
    assert world.do(start_append, unknown) == StreamRefused(None, world.clock())


def test_at_the_very_end_of_the_lease_it_is_too_late(world: World) -> None:
    held = world.started()
    world.clock.advance(LEASE_MS - 1)
    append(world, held)
    world.clock.advance(1)
    assert isinstance(world.do(start_append, appending(held)), StreamRefused)


def test_a_revoked_or_finished_attempt_takes_no_frames(world: World) -> None:
    lost = world.started()
    world.do(start_apply, revoke(lost, "operator"))
    assert isinstance(world.do(start_append, appending(lost)), StreamRefused)
    (held,) = world.claim()
    world.complete(held)
    assert isinstance(world.do(start_append, appending(held)), StreamRefused)


def test_ids_go_up_while_the_clock_goes_back(world: World) -> None:
    held = world.started()
    start = world.clock()
    (first,) = append(world, held).ids
    world.clock.advance(-1_000)
    (second,) = append(world, held).ids
    world.clock.advance(1_001)
    (third,) = append(world, held).ids
    assert [first, second, third] == [f"{start}-0", f"{start}-1", f"{start + 1}-0"]


def test_a_number_seen_before_answers_the_earlier_id_and_appends_nothing(world: World) -> None:
    held = world.started()
    first = append(world, held, frame(b"1", seq=1), frame(b"2", seq=2))
    world.clock.advance(5)
    again = append(world, held, frame(b"1", seq=1), frame(b"2", seq=2), frame(b"3", seq=3))
    assert again.ids[:2] == first.ids
    assert again.frame_count == 3
    assert payloads(world, held) == [b"1", b"2", b"3"]
    assert append(world, held, frame(b"2", seq=2)).ids == first.ids[1:]
    assert world.topics == set()


def test_a_number_twice_in_one_call_is_one_frame(world: World) -> None:
    held = world.started()
    answer = append(world, held, frame(b"1", seq=1), frame(b"1", seq=1))
    assert answer.ids[0] == answer.ids[1]
    assert answer.frame_count == 1


def test_numbers_may_come_out_of_order(world: World) -> None:
    held = world.started()
    append(world, held, frame(b"2", seq=2))
    append(world, held, frame(b"1", seq=1))
    assert payloads(world, held) == [b"2", b"1"]


def test_a_number_outlives_the_trim_of_its_frame(world: World) -> None:
    held = world.started()
    batch = [frame(str(n).encode(), seq=n) for n in range(1, 9)]
    first = append(world, held, *batch, trim=Trim("durable", 2))
    again = append(world, held, *batch, trim=Trim("durable", 2))
    assert (again.ids, again.frame_count) == (first.ids, 8)
    assert payloads(world, held) == [b"7", b"8"]


def test_of_a_number_from_long_ago_only_the_id_is_forgotten(world: World) -> None:
    held = world.started()
    append(world, held, frame(seq=1))
    append(world, held, frame(seq=1 + NUMBERS_KEPT))
    assert append(world, held, frame(seq=1)).ids == (FORGOTTEN,)
    assert len(payloads(world, held)) == 2


def test_a_frame_over_the_limit_fails_alone_and_whole(world: World) -> None:
    held = world.started()
    good, bad = (
        appending(held, frame(b"x" * 65_536)),
        appending(held, frame(), frame(b"x" * 65_537)),
    )
    answers = world.answers(start_append, good, bad, appending(held, frame(b"z")))
    assert isinstance(answers[1], RetentionLimitExceeded)
    assert [len(payload) for payload in payloads(world, held)] == [65_536, 1]


def test_later_items_of_a_batch_follow_earlier_ones(world: World) -> None:
    held = world.started()
    items = [appending(held, frame(str(n).encode()), trim=Trim("durable", 3)) for n in range(9)]
    answers = world.answers(start_append, *items)
    ids = [answer.ids[0] for answer in answers if isinstance(answer, Appended)]
    assert ids == [f"{world.clock()}-{n}" for n in range(9)]
    assert payloads(world, held) == [b"6", b"7", b"8"]


def test_an_exact_trim_keeps_exactly_so_many_and_counts_all(world: World) -> None:
    held = world.started()
    trim = Trim("durable", 5)
    answers = [append(world, held, frame(str(n).encode()), trim=trim) for n in range(12)]
    assert (answers[-1].frame_count, answers[-1].retained) == (12, 5)
    assert payloads(world, held) == [b"7", b"8", b"9", b"10", b"11"]


def test_an_approximate_trim_waits_for_a_tenth_more(world: World) -> None:
    held = world.started()
    trim = Trim("durable", 20, exact=False)
    lengths = [append(world, held, trim=trim).retained for _ in range(25)]
    assert max(lengths) == 22
    assert lengths[-3:] == [20, 21, 22]


def test_a_trim_leaves_the_frames_of_other_modes_alone(world: World) -> None:
    held = world.started()
    for n in range(4):
        append(world, held, frame(b"d%d" % n), trim=Trim("durable", 3))
        for i in range(3):
            live = frame(b"l%d%d" % (n, i), mode="best_effort")
            append(world, held, live, trim=Trim("best_effort", 2))
    assert payloads(world, held) == [b"d1", b"d2", b"d3", b"l31", b"l32"]


def test_a_trim_that_looked_enough_is_taken_up_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MOST_LOOKS", 5)
    held = world.started()
    append(world, held, *(frame(b"d") for _ in range(30)))
    trim = Trim("best_effort", 1)
    lengths = [
        append(world, held, frame(b"l", mode="best_effort"), trim=trim).retained - 30
        for _ in range(12)
    ]
    assert max(lengths) > 1
    assert lengths[-1] == 1
    assert payloads(world, held) == [b"d"] * 30 + [b"l"]


def test_best_effort_frames_end_and_stay_ended(world: World) -> None:
    held = world.started()
    append(world, held, frame(b"old", mode="best_effort"), expire_ms=100)
    world.clock.advance(99)
    assert payloads(world, held) == [b"old"]
    world.clock.advance(1)
    assert payloads(world, held) == []
    answer = append(world, held, frame(b"new", mode="best_effort"), expire_ms=100)
    assert (answer.frame_count, answer.retained) == (2, 1)
    assert payloads(world, held) == [b"new"]


def test_a_durable_frame_ends_the_expiry_for_good(world: World) -> None:
    held = world.started()
    append(world, held, frame(b"live", mode="best_effort"), expire_ms=100)
    append(world, held, frame(b"kept"))
    append(world, held, frame(b"later", mode="best_effort"), expire_ms=100)
    world.clock.advance(10_000)
    assert payloads(world, held) == [b"live", b"kept", b"later"]


def test_the_summary_moves_under_its_version(world: World) -> None:
    held = world.started()
    patch = frame(b"{}", mode="summary")
    first = append(world, held, patch, summary=SummaryPut(0, b'{"a":1}'))
    began = world.clock()
    world.clock.advance(10)
    second = append(world, held, patch, summary=SummaryPut(1, b'{"a":2}'))
    assert (first.summary_version, second.summary_version) == (1, 2)
    summary = world.read(read_summary, held.execution_id, 0)
    assert summary is not None
    assert (summary.document, summary.version) == (b'{"a":2}', 2)
    assert (summary.first_applied_ms, summary.last_updated_ms) == (began, began + 10)
    assert [stored.frame.summary_version for stored in frames(world, held).frames] == [1, 2]


def test_a_summary_of_another_version_is_refused_with_the_stored_one(world: World) -> None:
    held = world.started()
    append(world, held, frame(mode="summary"), summary=SummaryPut(0, b"{}"))
    answer = world.do(start_append, appending(held, frame(), summary=SummaryPut(0, b"{}")))
    assert answer == StreamRefused(held, world.clock(), 1)
    assert len(payloads(world, held)) == 1


def test_a_repeated_summary_is_answered_although_its_version_has_moved(world: World) -> None:
    held = world.started()
    put = SummaryPut(0, b"{}")
    first = append(world, held, frame(mode="summary", seq=1), summary=put)
    again = append(world, held, frame(mode="summary", seq=1), summary=put)
    assert again == msgspec.structs.replace(first, replayed=True)


def test_a_summary_of_other_patches_than_the_new_ones_is_refused(world: World) -> None:
    held = world.started()
    patches = [frame(b"{}", mode="summary", seq=number) for number in (1, 2, 3)]
    append(world, held, *patches[:2], summary=SummaryPut(0, b"{}", 2))
    mixed = [frame(b"plain"), patches[1], patches[2]]
    for put in (SummaryPut(2, b"{}", 2), SummaryPut(1, b"{}", 1)):
        answer = world.do(start_append, appending(held, *mixed, summary=put))
        assert answer == StreamRefused(held, world.clock(), 2, repeated=(1,))
    assert len(payloads(world, held)) == 2
    done = append(world, held, *mixed, summary=SummaryPut(2, b"{}", 1))
    assert (done.summary_version, done.frame_count) == (3, 4)
    assert [stored.frame.summary_version for stored in frames(world, held).frames] == [1, 2, 0, 3]


def test_a_number_twice_in_one_call_is_one_patch(world: World) -> None:
    held = world.started()
    twice = [frame(b"{}", mode="summary", seq=5)] * 2
    answer = world.do(start_append, appending(held, *twice, summary=SummaryPut(0, b"{}", 2)))
    assert isinstance(answer, StreamRefused)
    assert append(world, held, *twice, summary=SummaryPut(0, b"{}", 1)).summary_version == 1


def test_frames_of_several_modes_are_trimmed_each_by_its_own_limit(world: World) -> None:
    held = world.started()
    both = (Trim("durable", 3), Trim("best_effort", 2))
    for n in range(5):
        live = frame(b"l%d" % n, mode="best_effort")
        item = msgspec.structs.replace(appending(held, live, frame(b"d%d" % n)), trims=both)
        world.do(start_append, item)
    assert payloads(world, held) == [b"d2", b"l3", b"d3", b"l4", b"d4"]


def test_the_document_outlives_every_trim_and_attempt(world: World) -> None:
    held = world.started()
    trim = Trim("summary", 1)
    for version in range(3):
        put = SummaryPut(version, b"%d" % version)
        append(world, held, frame(mode="summary"), summary=put, trim=trim)
    world.complete(held)
    summary = world.read(read_summary, held.execution_id, 0)
    assert summary is not None
    assert summary.document == b"2"


def test_a_read_is_a_range_of_ids(world: World) -> None:
    held = world.started()
    start = world.clock()
    for _ in range(3):
        append(world, held, frame(b"%d" % world.clock()), frame(b"-"))
        world.clock.advance(1)
    page = frames(world, held, after=f"{start}-0", to=f"{start + 1}")
    assert [stored.id for stored in page.frames] == [
        f"{start}-1",
        f"{start + 1}-0",
        f"{start + 1}-1",
    ]
    assert page.next_after == f"{start + 1}-1"
    assert [stored.id for stored in frames(world, held, n=1).frames] == [f"{start}-0"]
    assert frames(world, held, after=str(start + 9)).next_after == str(start + 9)


@pytest.mark.parametrize("position", ["x", "-", "1-", "1-2-3", "٣"])
def test_a_position_that_is_none_is_refused(world: World, position: str) -> None:
    held = world.started()
    with pytest.raises(InvalidInput):
        frames(world, held, after=position)
    with pytest.raises(InvalidInput):
        frames(world, held, to=position)


def test_what_nobody_wrote_reads_as_empty_and_open(world: World) -> None:
    page = world.read(read_frames, FrameRange("{fp:0}:nobody", 0))
    assert page == FramePage(frames=(), count=0, next_after="0-0")


def test_the_close_is_told_by_the_attempt_open_or_ended(world: World) -> None:
    held = world.started()
    assert frames(world, held).closed_at == 0
    world.do(start_apply, revoke(held, "operator"))
    assert frames(world, held).closed_reason == "lease_revoked"
    (again,) = world.claim()
    assert frames(world, held).closed_reason == "reclaimed"
    assert frames(world, again).closed_at == 0
    world.complete(again)
    page = frames(world, again)
    assert (page.closed_at, page.closed_reason) == (world.clock(), "attempt_success")
