"""Schedules: what is submitted again and again, and when. A schedule is a name within its
namespace."""

from typing import Annotated, Any

import msgspec

from flowfabric.core.ids import check_schedule_id
from flowfabric.errors import (
    BudgetNotFound,
    InvalidCapabilities,
    InvalidPolicyJson,
    LaneNotAccepting,
    NotFound,
    QuotaNotFound,
)
from flowfabric.operations.declaration import READ, SUBMIT, operation
from flowfabric.operations.executions import Arguments, Policy, Tags
from flowfabric.operations.types import (
    VISIBLE,
    Answer,
    Free,
    Limit,
    Namespace,
    Page,
    Part,
    Syntax,
    Timestamp,
    one_of,
)

ScheduleId = Annotated[str, Syntax(check_schedule_id), Free("a name within its namespace")]
Overlap = Annotated[str, one_of("allow", "skip")]
CatchUp = Annotated[str, one_of("latest", "all", "none")]


class NewSchedule(Part, frozen=True, kw_only=True):
    """Exactly one of `every_ms` and `cron` is given. Without `paused` it stays as it is. Values are
    checked when it is put. Unless it is `typed`, options that are left out are those that the task
    declares at each time it fires."""

    kind: str
    namespace: Namespace = "default"
    lane: str = ""
    payload: bytes = b""
    arguments: Arguments = msgspec.field(name="input", default=None)
    payload_encoding: str = ""
    policy: Policy = None
    tags: Tags | None = None
    priority: int | None = None
    every_ms: int | None = None
    cron: str | None = None
    tz: str = "UTC"
    start_at: Timestamp | None = None
    end_at: Timestamp | None = None
    paused: bool | None = None
    overlap: Overlap = "allow"
    catch_up: CatchUp = "latest"
    jitter_ms: int = 0
    typed: bool = False


class ScheduleInfo(Answer, frozen=True, kw_only=True):
    """An instant of 0 has not come, or never will."""

    schedule_id: str
    namespace: str
    kind: str
    lane: str = ""
    payload: bytes = b""
    payload_encoding: str = ""
    policy: dict[str, Any] | None = None
    tags: dict[str, str]
    priority: int | None = None
    every_ms: int = 0
    cron: str = ""
    tz: str
    start_at: int = 0
    end_at: int = 0
    paused: bool
    overlap: Overlap
    catch_up: CatchUp
    jitter_ms: int = 0
    typed: bool = False
    next_at: int = 0
    last_fired_at: int = 0
    last_execution_id: str = ""
    created_at: int
    changed_at: int


class Backfill(Part, frozen=True, kw_only=True):
    """Both ends are included."""

    first: Timestamp = msgspec.field(name="from")
    last: Timestamp = msgspec.field(name="to")
    namespace: Namespace = "default"


class Triggered(Answer, frozen=True, kw_only=True):
    execution_id: str


class Backfilled(Answer, frozen=True, kw_only=True):
    """The executions of all times, oldest first."""

    execution_ids: list[str]


class Schedules:
    @operation(
        "PUT /v1/schedules/{schedule_id}",
        SUBMIT,
        InvalidPolicyJson,
        InvalidCapabilities,
        BudgetNotFound,
        QuotaNotFound,
        audit="schedule_changed",
    )
    async def put_schedule(self, schedule_id: ScheduleId, new: NewSchedule) -> ScheduleInfo:
        """Create or replace a schedule; the same one put again keeps its next time."""

    @operation("GET /v1/schedules/{schedule_id}", READ, NotFound)
    async def describe_schedule(
        self, schedule_id: ScheduleId, namespace: Namespace = "default"
    ) -> ScheduleInfo:
        """A schedule, with its next time and what it submitted last."""

    @operation("GET /v1/schedules", READ, owner=VISIBLE)
    async def list_schedules(
        self,
        namespace: Namespace = "",
        cursor: str = "",
        limit: Limit = 50,
    ) -> Page[ScheduleInfo]:
        """Schedules by namespace and id, of one namespace or of all that the caller may see."""

    @operation(
        "DELETE /v1/schedules/{schedule_id}",
        SUBMIT,
        NotFound,
        repeat=False,
        audit="schedule_deleted",
    )
    async def delete_schedule(
        self, schedule_id: ScheduleId, namespace: Namespace = "default"
    ) -> None:
        """Delete a schedule; what it has submitted stays."""

    @operation("POST /v1/schedules/{schedule_id}/pause", SUBMIT, NotFound, audit="schedule_paused")
    async def pause_schedule(
        self, schedule_id: ScheduleId, namespace: Namespace = "default"
    ) -> ScheduleInfo:
        """Submit nothing until it is resumed; its next time still advances."""

    @operation(
        "POST /v1/schedules/{schedule_id}/resume", SUBMIT, NotFound, audit="schedule_resumed"
    )
    async def resume_schedule(
        self, schedule_id: ScheduleId, namespace: Namespace = "default"
    ) -> ScheduleInfo:
        """Submit again from now on; times that passed meanwhile are skipped."""

    @operation(
        "POST /v1/schedules/{schedule_id}/trigger",
        SUBMIT,
        NotFound,
        LaneNotAccepting,
        repeat=False,
        audit="schedule_triggered",
    )
    async def trigger_schedule(
        self, schedule_id: ScheduleId, namespace: Namespace = "default"
    ) -> Triggered:
        """Submit now, paused or not, whatever the schedule says about times."""

    @operation(
        "POST /v1/schedules/{schedule_id}/backfill",
        SUBMIT,
        NotFound,
        LaneNotAccepting,
        audit="schedule_backfilled",
    )
    async def backfill_schedule(self, schedule_id: ScheduleId, span: Backfill) -> Backfilled:
        """Submit for every time between two instants that has no execution yet, 1,000 at most."""
