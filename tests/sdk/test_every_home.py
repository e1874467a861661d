"""One program, unchanged, in every home a fabric has: the same story to the last word."""

from pathlib import Path

import pytest

from tests.sdk.backends import EVERY
from tests.sdk.press import Story, Summary, told

STORY = Story(
    summaries=[Summary("a", 11), Summary("b", 12), Summary("c", 13)],
    reported="a and b and c",
    counted="d and e",
    agreed=["ada", "bob"],
    failure=("stopped: out of paper", "handler_error", True),
    attempts=["initial", "retry", "retry"],
    frames=["looking at a", "done with a"],
    tokens=11 + 12 + 13 + 11 + 11,
    cancelled="cancelled",
    heard=["cancelled", "failure", *["success"] * 9],
)


@pytest.mark.parametrize("home", EVERY)
async def test_a_program_comes_to_the_same_everywhere(home: str, tmp_path: Path) -> None:
    async with EVERY[home](tmp_path) as fabric:
        assert await told(fabric) == STORY
