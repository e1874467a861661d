"""FlowFabric: durable execution for Python.

Names are loaded when they are asked for, so that a program pays only for what it uses.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from flowfabric.core.version import VERSION

if TYPE_CHECKING:
    from flowfabric.core.policy import ExponentialBackoff, FixedBackoff
    from flowfabric.errors import (
        BudgetExceeded,
        CallTimeout,
        ConfigError,
        ExecutionCancelled,
        ExecutionExpired,
        ExecutionFailed,
        ExecutionSkipped,
        FlowFabricError,
        NonRetryable,
        ResultTimeout,
        StepFailed,
        StepTimeout,
    )
    from flowfabric.fabric.app import FlowFabric
    from flowfabric.fabric.connection import WorkerConfig, connect, connect_with
    from flowfabric.fabric.flows import Flow, FlowRun
    from flowfabric.fabric.nodes import Node
    from flowfabric.fabric.runs import Frame, Run
    from flowfabric.fabric.schedules import TaskSchedule
    from flowfabric.fabric.tasks import Task, Tasks
    from flowfabric.telemetry.logs import TaskLogFilter
    from flowfabric.worker.answers import Delay, Fail, Suspend
    from flowfabric.worker.claimed import ClaimedTask
    from flowfabric.worker.claiming import Claimer
    from flowfabric.worker.context import Context, SyncContext, TaskInfo
    from flowfabric.worker.handlers import Data, Middleware, Payload, PayloadBytes
    from flowfabric.worker.resources import resource
    from flowfabric.worker.runtime import Worker
    from flowfabric.worker.waits import Decision, PendingWaitpoint, Signal

__version__ = VERSION

__all__ = [
    "BudgetExceeded",
    "CallTimeout",
    "ClaimedTask",
    "Claimer",
    "ConfigError",
    "Context",
    "Data",
    "Decision",
    "Delay",
    "ExecutionCancelled",
    "ExecutionExpired",
    "ExecutionFailed",
    "ExecutionSkipped",
    "ExponentialBackoff",
    "Fail",
    "FixedBackoff",
    "Flow",
    "FlowFabric",
    "FlowFabricError",
    "FlowRun",
    "Frame",
    "Middleware",
    "Node",
    "NonRetryable",
    "Payload",
    "PayloadBytes",
    "PendingWaitpoint",
    "ResultTimeout",
    "Run",
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
    "Worker",
    "WorkerConfig",
    "connect",
    "connect_with",
    "resource",
]

_MODULES: Final = {
    "flowfabric.core.policy": ("ExponentialBackoff", "FixedBackoff"),
    "flowfabric.errors": (
        "BudgetExceeded",
        "CallTimeout",
        "ConfigError",
        "ExecutionCancelled",
        "ExecutionExpired",
        "ExecutionFailed",
        "ExecutionSkipped",
        "FlowFabricError",
        "NonRetryable",
        "ResultTimeout",
        "StepFailed",
        "StepTimeout",
    ),
    "flowfabric.fabric.app": ("FlowFabric",),
    "flowfabric.fabric.connection": ("WorkerConfig", "connect", "connect_with"),
    "flowfabric.fabric.flows": ("Flow", "FlowRun"),
    "flowfabric.fabric.nodes": ("Node",),
    "flowfabric.fabric.runs": ("Frame", "Run"),
    "flowfabric.fabric.schedules": ("TaskSchedule",),
    "flowfabric.fabric.tasks": ("Task", "Tasks"),
    "flowfabric.telemetry.logs": ("TaskLogFilter",),
    "flowfabric.worker.answers": ("Delay", "Fail", "Suspend"),
    "flowfabric.worker.claimed": ("ClaimedTask",),
    "flowfabric.worker.claiming": ("Claimer",),
    "flowfabric.worker.context": ("Context", "SyncContext", "TaskInfo"),
    "flowfabric.worker.handlers": ("Data", "Middleware", "Payload", "PayloadBytes"),
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
