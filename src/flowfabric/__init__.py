"""FlowFabric: durable execution for Python."""

from flowfabric.core.policy_types import ExponentialBackoff, FixedBackoff
from flowfabric.core.version import VERSION
from flowfabric.errors import (
    BudgetExceeded,
    ConfigError,
    ExecutionCancelled,
    ExecutionExpired,
    ExecutionFailed,
    ExecutionSkipped,
    FlowFabricError,
    ResultTimeout,
)
from flowfabric.fabric.app import FlowFabric
from flowfabric.fabric.claimers import WorkerConfig, connect, connect_with
from flowfabric.fabric.flow_runs import FlowRun
from flowfabric.fabric.flows import Flow
from flowfabric.fabric.nodes import Node
from flowfabric.fabric.runs import Frame, Run
from flowfabric.fabric.schedules import TaskSchedule
from flowfabric.fabric.tasks import Task
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
    "Payload",
    "PayloadBytes",
    "PendingWaitpoint",
    "ResultTimeout",
    "Run",
    "Signal",
    "Suspend",
    "SyncContext",
    "Task",
    "TaskInfo",
    "TaskSchedule",
    "Worker",
    "WorkerConfig",
    "connect",
    "connect_with",
    "resource",
]
