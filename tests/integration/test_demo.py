"""`make run`: every execution of the demo ends as its story says, a killed worker's too."""

import subprocess
import sys


def test_the_demo_ends_as_told() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flowfabric.demo"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for expected in (
        "kill -9",
        "taken over by",
        "failed, a retry is scheduled",
        "cancelled",
        "expired: the attempt took too long",
        "Everything ended as told.",
    ):
        assert expected in done.stdout
