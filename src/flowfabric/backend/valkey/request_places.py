"""The names that Lua files use for the structs of requests, and the order of their members."""

from collections.abc import Mapping
from typing import Final

import msgspec

from flowfabric.backend.valkey import flow_requests, limit_requests, requests
from flowfabric.core.limits.asks import Admission

_STRUCTS: Final[Mapping[str, type[msgspec.Struct]]] = {
    **{name: struct for struct, name in limit_requests.ACTS.items()},
    "call": requests.Call,
    "claim": requests.Claim,
    "new": requests.CreateExecution,
    "shape": requests.Shape,
    "order": requests.ClaimOrder,
    "named": requests.NamedLease,
    "applying": requests.Applying,
    "append": requests.AppendFrames,
    "summary": requests.PutSummary,
    "steps": requests.AppendSteps,
    "step_page": requests.ReadSteps,
    "trim": requests.TrimLog,
    "peek": requests.PeekQueues,
    "list": requests.ListView,
    "graph": flow_requests.CreateGraph,
    "cancel_flow": flow_requests.CancelFlow,
    "flow": flow_requests.OneFlow,
    "upstreams": flow_requests.ReadUpstreams,
    "act": limit_requests.Act,
    "admitting": limit_requests.Admitting,
    "admit": Admission,
    "ask": limit_requests.AskLimit,
    "restore": limit_requests.Restoring,
    "attach": limit_requests.Attaching,
    "heartbeat": requests.Heartbeat,
    "commit_rows": requests.Committing,
}
REQUESTS: Final[Mapping[str, tuple[str, ...]]] = {
    "own": requests.OwnOfPlan._fields,
    "member": flow_requests.Member._fields,
    **{name: struct.__struct_fields__ for name, struct in _STRUCTS.items()},
}
