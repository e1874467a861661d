"""Why an execution is not running: what `explain` answers, for programs and for people."""

from typing import Literal

from flowfabric.core.facets import Facets
from flowfabric.operations.types import Answer

Code = Literal[
    "lane_state",
    "delay",
    "retry_backoff",
    "resume_delay",
    "dependencies",
    "missing_capabilities",
    "no_worker",
    "budget",
    "quota",
    "concurrency_key",
    "operator_hold",
    "suspended",
    "reserved",
    "lease_lost",
    "terminal",
]


class Blocker(Answer, frozen=True):
    """One reason, in words with its numbers, since when, and until when if time alone ends it."""

    code: Code
    detail: str
    since: int | None = None
    until: int | None = None


class QueuePlace(Answer, frozen=True, kw_only=True):
    """Where a waiting execution stands. `ahead` counts those of its lane that the same workers
    would take first, of the first two hundred looked at."""

    lane_id: str
    ahead: int
    oldest_waiting_ms: int
    live_workers: int
    capable_workers: int


class NextTimer(Answer, frozen=True):
    """What happens by itself, and when."""

    what: str
    at: int


class LastFailure(Answer, frozen=True):
    reason: str
    category: str


class Explanation(Answer, frozen=True, kw_only=True):
    """Every reason at once. No blockers and not running: it waits its turn."""

    execution_id: str
    public_state: str
    state_vector: Facets
    running: bool
    blockers: tuple[Blocker, ...]
    queue: QueuePlace | None = None
    next_timer: NextTimer | None = None
    last_failure: LastFailure | None = None
    attempts: int
    hints: tuple[str, ...]

    def lines(self) -> list[str]:
        """The same as text, the verdict first."""
        lines = [f"{self.execution_id} is {self.public_state}: {self._verdict()}"]
        lines += [f"- {_line(blocker)}" for blocker in self.blockers]
        if self.queue is not None:
            place = self.queue
            lines.append(
                f"- lane {place.lane_id}: {place.ahead} ahead,"
                f" {place.capable_workers} of {place.live_workers} live workers could run it"
            )
        if self.next_timer is not None:
            lines.append(f"- next: {self.next_timer.what} at {self.next_timer.at}")
        if self.last_failure is not None:
            lines.append(f"- last failure: {self.last_failure.reason}")
        return [*lines, *(f"- try: {hint}" for hint in self.hints)]

    def _verdict(self) -> str:
        if self.running:
            return "running"
        return "not running" if self.blockers else "waiting its turn"


def _line(blocker: Blocker) -> str:
    since = f", since {blocker.since}" if blocker.since else ""
    until = f", until {blocker.until}" if blocker.until else ""
    return f"{blocker.code}: {blocker.detail}{since}{until}"
