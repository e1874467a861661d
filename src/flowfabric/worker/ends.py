"""What the end of an execution means for whoever waited for it: a value, or an error."""

from typing import Any, Final

from flowfabric.errors import (
    ExecutionCancelled,
    ExecutionExpired,
    ExecutionFailed,
    ExecutionSkipped,
    FlowFabricError,
)
from flowfabric.operations.execution_queries import Ended
from flowfabric.worker import codecs

TRACEBACK: Final = "ff.traceback"


def value_of_end(ended: Ended, type_: Any = Any, traceback: str = "") -> Any:
    if ended.state == "completed":
        try:
            return codecs.decode(ended.result, ended.result_encoding, type_)
        except codecs.Undecodable as fault:
            raise codecs.Undecodable(f"the result of {ended.execution_id}: {fault}") from fault
    raise error_of_end(ended, traceback)


def error_of_end(ended: Ended, traceback: str = "") -> FlowFabricError:
    reason = ended.reason or f"execution {ended.execution_id} {ended.state}"
    details = {"execution_id": ended.execution_id}
    match ended.state:
        case "cancelled":
            return ExecutionCancelled(reason, **details)
        case "expired":
            return ExecutionExpired(reason, **details)
        case "skipped":
            return ExecutionSkipped(reason, **details)
        case _:
            return ExecutionFailed(reason, category=ended.category, traceback=traceback, **details)
