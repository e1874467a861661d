"""The executions the demo submits, and how each is expected to end."""

import time
from typing import Final

import msgspec

from flowfabric.engine.executions import Submission

_RETRY: Final = {"retry_policy": {"max_retries": 3, "backoff": {"type": "fixed", "delay_ms": 400}}}


class Scene(msgspec.Struct, frozen=True):
    """One execution of the story."""

    name: str
    submission: Submission
    expected: str
    about: str


def scenes() -> list[Scene]:
    later = int(time.time() * 1000) + 1_500
    far = int(time.time() * 1000) + 3_600_000
    timeout = {"timeout_policy": {"attempt_timeout_ms": 1_500}}
    return [
        Scene("greeting", Submission(kind="greet", input=b"world"), "completed", "just runs"),
        Scene(
            "flaky",
            Submission(kind="flaky", policy=_RETRY),
            "completed",
            "fails twice, is retried after a backoff",
        ),
        Scene(
            "delayed",
            Submission(kind="greet", input=b"later", delay_until=later),
            "completed",
            "starts 1.5 s after it was submitted",
        ),
        Scene(
            "cancelled",
            Submission(kind="greet", delay_until=far),
            "cancelled",
            "an operator cancels it while it waits",
        ),
        Scene(
            "broken",
            Submission(kind="broken", policy=_RETRY),
            "failed",
            "its failure is permanent: no retry",
        ),
        Scene(
            "endless",
            Submission(kind="endless", policy=timeout),
            "expired",
            "runs into its attempt timeout",
        ),
        Scene(
            "survivor",
            Submission(kind="survivor"),
            "completed",
            "its worker is killed; another one finishes it",
        ),
    ]
