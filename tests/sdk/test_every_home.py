"""One program, unchanged, in every home a fabric has: the same story to the last word."""

from pathlib import Path

import pytest

from tests.sdk.backends import EVERY, EVERYWHERE
from tests.sdk.press import Story, Summary, told

STORY = Story(
    summaries=[Summary("a", 11), Summary("b", 12), Summary("c", 13)],
    reported="a and b and c",
    counted="d and e",
    agreed=["ada", "bob"],
    failure=("RuntimeError: stopped: OSError: out of paper", "handler_error", True),
    attempts=["initial", "retry", "retry"],
    frames=["looking at a", "done with a"],
    tokens=11 + 12 + 13 + 11 + 11,
    cancelled="cancelled",
    heard=["cancelled", "failure", *["success"] * 9],
)


@pytest.mark.parametrize("home", EVERYWHERE)
async def test_a_program_comes_to_the_same_everywhere(home: str, tmp_path: Path) -> None:
    async with EVERY[home](tmp_path) as fabric:
        assert await told(fabric) == STORY


@pytest.mark.parametrize("home", EVERYWHERE)
async def test_what_a_handler_works_on_is_read_alike(home: str, tmp_path: Path) -> None:
    async with EVERY[home](tmp_path) as fabric:
        run = await fabric.submit("greet", b"\x00\xff", lane="desk", tags={"app.team": "red"})
        context = await fabric.admin.read_context(run.id)
        assert (context.input_payload, context.execution_kind) == (b"\x00\xff", "greet")
        assert context.tags == {"app.team": "red"}
        info = await run.info()
        assert (info.tags, info.total_attempt_count, info.current_lease) == (context.tags, 0, None)
        async with fabric.claimer(["desk"]) as claimer:
            task = await claimer.claim_next()
            assert task is not None
            info = await run.info()
            assert info.current_attempt is not None
            assert info.current_attempt.attempt_id == task.attempt_id
            assert info.current_lease is not None
            assert info.current_lease.lease_id == task.lease_id
            assert info.last_mutation_at is not None
            assert info.last_mutation_at >= info.created_at
            await task.complete()
