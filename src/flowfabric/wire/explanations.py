"""Why an execution is not running."""

from flowfabric.core.facets import Facets
from flowfabric.operations.types import Answer


class Blocker(Answer, frozen=True, kw_only=True):
    code: str
    detail: str
    since: int | None = None
    until: int | None = None


class QueuePlace(Answer, frozen=True, kw_only=True):
    lane_id: str
    ahead: int
    oldest_waiting_ms: int
    live_workers: int
    capable_workers: int


class NextTimer(Answer, frozen=True, kw_only=True):
    what: str
    at: int


class LastFailure(Answer, frozen=True, kw_only=True):
    reason: str
    category: str


class Explanation(Answer, frozen=True, kw_only=True):
    execution_id: str
    public_state: str
    state_vector: Facets
    running: bool
    blockers: list[Blocker]
    queue: QueuePlace | None = None
    next_timer: NextTimer | None = None
    last_failure: LastFailure | None = None
    attempts: int
    hints: list[str]
