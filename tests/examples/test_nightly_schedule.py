"""The example of a nightly schedule does what it tells."""

import pytest

from examples.nightly_schedule import main


async def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    await main()
    told = capsys.readouterr().out.splitlines()
    assert told[0] in ("next: 00:30 UTC", "next: 01:30 UTC")
    assert told[1:] == [
        "paused: True",
        "by hand: the report of Oslo",
        "made up for: 7, again: True",
    ]
