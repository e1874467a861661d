"""Tasks that workers have registered: what may be submitted by name, with which options and
arguments. A task is a name within its namespace."""

from typing import Annotated, Any

import msgspec

from flowfabric.core.ids import check_kind
from flowfabric.errors import FlowFabricError, InvalidInput, NotFound
from flowfabric.operations.declaration import ADMIN, READ, WORKER, operation
from flowfabric.operations.executions import Policy, Tags
from flowfabric.operations.types import (
    Answer,
    Batch,
    Free,
    Limit,
    Namespace,
    Page,
    Part,
    Syntax,
    Timestamp,
    WorkerId,
)

TaskKind = Annotated[str, Syntax(check_kind), Free("a name within its namespace")]
Schema = Annotated[dict[str, Any] | None, msgspec.Meta(description="A JSON Schema")]


class NewTask(Part, frozen=True, kw_only=True):
    """A task as its program declares it. Values are checked when it is registered."""

    kind: str
    version: str = ""
    lane: str = msgspec.field(name="lane_id", default="default")
    priority: int | None = None
    tags: Tags | None = None
    policy: Policy = None
    delay_ms: int = 0
    delay_until: Timestamp = 0
    idempotency_key: str = ""
    arguments: Schema = None
    result: Schema = None
    description: str = ""


class TaskRegistered(Answer, frozen=True, kw_only=True):
    """Whether it is the newest declaration, which submits by name take their options from, and
    whether its schemas were too large to be kept."""

    is_newest: bool = True
    schema_left_out: bool = False


class TasksRegistered(Answer, frozen=True, kw_only=True):
    """One answer per task. `started_at` is the start of the process, to be sent again."""

    items: list[TaskRegistered | FlowFabricError]
    started_at: int


class OtherDeclaration(Answer, frozen=True, kw_only=True):
    """Who declares a task otherwise, in which members, and whether the worker that registered it
    last is alive."""

    version: str = ""
    build: str = ""
    worker_instance_id: str = ""
    started_at: int
    registered_at: int
    differs_in: tuple[str, ...]
    is_live: bool


class TaskInfo(Answer, frozen=True, kw_only=True):
    """A task by its newest declaration. An instant of 0 is not set."""

    kind: str
    namespace: str
    version: str = ""
    lane_id: str
    priority: int | None = None
    tags: dict[str, str]
    policy: dict[str, Any] | None = None
    delay_ms: int = 0
    delay_until: int = 0
    idempotency_key: str = ""
    arguments: Schema = None
    result: Schema = None
    description: str = ""
    build: str = ""
    worker_instance_id: str = ""
    started_at: int
    registered_at: int
    # How many live workers run the kind.
    workers: int
    others: tuple[OtherDeclaration, ...] = ()


class Tasks:
    @operation("POST /v1/worker/tasks", WORKER, InvalidInput, size="batch")
    async def register_tasks(
        self,
        worker_instance_id: WorkerId,
        tasks: Batch[NewTask],
        namespace: Namespace = "default",
        *,
        build: str = "",
        started_at: Timestamp = 0,
    ) -> TasksRegistered:
        """Register what a worker declares of its tasks; of processes that differ the one that
        started last counts. Without `started_at` the process starts now."""

    @operation("GET /v1/tasks", READ)
    async def list_tasks(
        self,
        namespace: Namespace = "default",
        kind: str = "",
        cursor: str = "",
        limit: Limit = 50,
    ) -> Page[TaskInfo]:
        """The registered tasks of a namespace by kind, or the one of this kind."""

    @operation("DELETE /v1/tasks/{kind}", ADMIN, NotFound, repeat=False, audit="task_deleted")
    async def delete_task(self, kind: TaskKind, namespace: Namespace = "default") -> None:
        """Forget a task until a worker that declares it starts; what was submitted stays."""
