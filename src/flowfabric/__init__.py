"""FlowFabric: durable execution for Python.

Names are loaded when they are asked for, so that a program pays only for what it uses.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from flowfabric.core.version import VERSION

if TYPE_CHECKING:
    from flowfabric.config import Settings, settings_from
    from flowfabric.core.plan import Family
    from flowfabric.core.policy import ExponentialBackoff, FixedBackoff
    from flowfabric.errors import (
        BudgetExceeded,
        BudgetNotFound,
        CallTimeout,
        ConfigError,
        Conflict,
        ExecutionCancelled,
        ExecutionExpired,
        ExecutionFailed,
        ExecutionNotFound,
        ExecutionSkipped,
        FlowFabricError,
        NonRetryable,
        QuotaNotFound,
        ResultTimeout,
        StepFailed,
        StepTimeout,
        UnsupportedStore,
    )
    from flowfabric.fabric.app import FlowFabric
    from flowfabric.fabric.connection import Connection, WorkerConfig, connect, connect_with
    from flowfabric.fabric.flows import Flow, FlowRun
    from flowfabric.fabric.limits import Budget, Quota
    from flowfabric.fabric.nodes import Node
    from flowfabric.fabric.runs import Frame, Run
    from flowfabric.fabric.schedules import TaskSchedule
    from flowfabric.fabric.tasks import Task, Tasks
    from flowfabric.operations.budgets import NewReservation
    from flowfabric.operations.events import (
        FAMILIES,
        CompletionEvent,
        Event,
        EventScope,
        LeaseEvent,
    )
    from flowfabric.operations.execution_queries import FoundExecution
    from flowfabric.operations.executions import Reclaim, ReclaimCapExceeded, ReclaimGranted
    from flowfabric.operations.signals import Approval
    from flowfabric.telemetry.logs import TaskLogFilter
    from flowfabric.telemetry.metrics import Metrics, metrics_app, serving_metrics
    from flowfabric.worker.answers import Delay, Fail, Suspend
    from flowfabric.worker.claimed import ClaimedTask
    from flowfabric.worker.claiming import Claimer
    from flowfabric.worker.context import Context, SyncContext, TaskInfo
    from flowfabric.worker.handlers import Data, Middleware, Payload, PayloadBytes
    from flowfabric.worker.layers import CircuitBreaker, RateLimit, Tracing
    from flowfabric.worker.resources import resource
    from flowfabric.worker.runtime import Worker
    from flowfabric.worker.waits import Decision, PendingWaitpoint, Signal

__version__ = VERSION

__all__ = [
    "FAMILIES",
    "Approval",
    "Budget",
    "BudgetExceeded",
    "BudgetNotFound",
    "CallTimeout",
    "CircuitBreaker",
    "ClaimedTask",
    "Claimer",
    "CompletionEvent",
    "ConfigError",
    "Conflict",
    "Connection",
    "Context",
    "Data",
    "Decision",
    "Delay",
    "Event",
    "EventScope",
    "ExecutionCancelled",
    "ExecutionExpired",
    "ExecutionFailed",
    "ExecutionNotFound",
    "ExecutionSkipped",
    "ExponentialBackoff",
    "Fail",
    "Family",
    "FixedBackoff",
    "Flow",
    "FlowFabric",
    "FlowFabricError",
    "FlowRun",
    "FoundExecution",
    "Frame",
    "LeaseEvent",
    "Metrics",
    "Middleware",
    "NewReservation",
    "Node",
    "NonRetryable",
    "Payload",
    "PayloadBytes",
    "PendingWaitpoint",
    "Quota",
    "QuotaNotFound",
    "RateLimit",
    "Reclaim",
    "ReclaimCapExceeded",
    "ReclaimGranted",
    "ResultTimeout",
    "Run",
    "Settings",
    "Signal",
    "StepFailed",
    "StepTimeout",
    "Suspend",
    "SyncContext",
    "Task",
    "TaskInfo",
    "TaskLogFilter",
    "TaskSchedule",
    "Tasks",
    "Tracing",
    "UnsupportedStore",
    "Worker",
    "WorkerConfig",
    "connect",
    "connect_with",
    "metrics_app",
    "resource",
    "serving_metrics",
    "settings_from",
]

_MODULES: Final = {
    "flowfabric.config": ("Settings", "settings_from"),
    "flowfabric.core.plan": ("Family",),
    "flowfabric.core.policy": ("ExponentialBackoff", "FixedBackoff"),
    "flowfabric.errors": (
        "BudgetExceeded",
        "BudgetNotFound",
        "CallTimeout",
        "ConfigError",
        "Conflict",
        "ExecutionCancelled",
        "ExecutionExpired",
        "ExecutionFailed",
        "ExecutionNotFound",
        "ExecutionSkipped",
        "FlowFabricError",
        "NonRetryable",
        "QuotaNotFound",
        "ResultTimeout",
        "StepFailed",
        "StepTimeout",
        "UnsupportedStore",
    ),
    "flowfabric.fabric.app": ("FlowFabric",),
    "flowfabric.fabric.connection": ("Connection", "WorkerConfig", "connect", "connect_with"),
    "flowfabric.fabric.flows": ("Flow", "FlowRun"),
    "flowfabric.fabric.limits": ("Budget", "Quota"),
    "flowfabric.fabric.nodes": ("Node",),
    "flowfabric.fabric.runs": ("Frame", "Run"),
    "flowfabric.fabric.schedules": ("TaskSchedule",),
    "flowfabric.fabric.tasks": ("Task", "Tasks"),
    "flowfabric.operations.budgets": ("NewReservation",),
    "flowfabric.operations.events": (
        "CompletionEvent",
        "Event",
        "EventScope",
        "FAMILIES",
        "LeaseEvent",
    ),
    "flowfabric.operations.execution_queries": ("FoundExecution",),
    "flowfabric.operations.executions": ("Reclaim", "ReclaimCapExceeded", "ReclaimGranted"),
    "flowfabric.operations.signals": ("Approval",),
    "flowfabric.telemetry.logs": ("TaskLogFilter",),
    "flowfabric.telemetry.metrics": ("Metrics", "metrics_app", "serving_metrics"),
    "flowfabric.worker.answers": ("Delay", "Fail", "Suspend"),
    "flowfabric.worker.claimed": ("ClaimedTask",),
    "flowfabric.worker.claiming": ("Claimer",),
    "flowfabric.worker.context": ("Context", "SyncContext", "TaskInfo"),
    "flowfabric.worker.handlers": ("Data", "Middleware", "Payload", "PayloadBytes"),
    "flowfabric.worker.layers": ("CircuitBreaker", "RateLimit", "Tracing"),
    "flowfabric.worker.resources": ("resource",),
    "flowfabric.worker.runtime": ("Worker",),
    "flowfabric.worker.waits": ("Decision", "PendingWaitpoint", "Signal"),
}
_HOMES: Final = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
