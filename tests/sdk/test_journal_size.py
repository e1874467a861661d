"""A journal has an end: it is told before, and ends the attempt for good."""

import logging

import pytest

from flowfabric import Context, ExecutionFailed, FlowFabric
from flowfabric.core.journal import MAX_ENTRIES, JournalEntry
from flowfabric.worker import journal_size
from flowfabric.worker.journal_size import MAX_BYTES, WARN_BYTES, WARN_ENTRIES, JournalSize

MANY = JournalEntry("step", 1, "d", b"x" * 1024 * 1024)
SMALL = JournalEntry("step", 1, "d", b"")


def test_the_limits_are_those_that_are_told() -> None:
    assert (MAX_ENTRIES, MAX_BYTES) == (10_000, 64 * 2**20)
    assert (WARN_ENTRIES, WARN_BYTES) == (8_000, 48 * 2**20)


@pytest.mark.parametrize(("entry", "most", "warned_at"), [(MANY, 64, 48), (SMALL, 10_000, 8_000)])
def test_it_warns_once_and_then_has_no_room(
    entry: JournalEntry, most: int, warned_at: int, caplog: pytest.LogCaptureFixture
) -> None:
    size = JournalSize()
    size.load([entry] * (warned_at - 1))
    with caplog.at_level(logging.WARNING):
        for _ in range(warned_at - 1, most):
            assert size.has_room([entry])
            size.add([entry])
            if len(caplog.records) == 1:
                size.load([entry] * (most - warned_at - 1))
                break
        size.add([entry])
    assert len(caplog.records) == 1
    assert not size.has_room([entry])
    again = JournalSize()
    again.load([entry] * warned_at)
    again.add([entry])
    assert len(caplog.records) == 1


async def test_a_full_journal_ends_the_attempt_for_good_whatever_the_handler_catches(
    fabric: FlowFabric, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(journal_size, "MAX_ENTRIES", 6)
    monkeypatch.setattr(journal_size, "WARN_ENTRIES", 4)
    done: list[int] = []

    @fabric.task(retries=3, backoff=0)
    async def endless(ctx: Context) -> str:
        for n in range(20):
            try:
                await ctx.step("work", done.append, n)
                ctx.random()
            except BaseException:
                done.append(-1)
        return "over"

    async with fabric.worker():
        with pytest.raises(ExecutionFailed, match=r"journal: \d entries") as caught:
            await endless.call()
    assert caught.value.category == "journal_full"
    assert done[:4] == [0, 1, 2, 3]
    assert set(done[4:]) == {-1}
    assert len([one for one in caplog.records if "the journal has" in one.getMessage()]) == 1
