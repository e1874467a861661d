"""Spans of operations: one for each call of the engine, with the ids that the request names."""

from collections.abc import Mapping
from typing import Any, Final

from flowfabric.core.ids import partition_of
from flowfabric.errors import InvalidInput
from flowfabric.operations.declaration import Call, Operation, Transport
from flowfabric.telemetry.traces import Traces

# Ids and numbers. Payloads, names of people and tokens are never attributes.
_NAMED: Final = (
    *("execution_id", "attempt_id", "attempt_index", "lease_epoch"),
    *("flow_id", "budget_id", "waitpoint_id", "partition"),
)


def ids_of(declared: Operation[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of its span."""
    given = {name: declared.member(arguments, name) for name in _NAMED}
    found = {name: value for name, value in given.items() if value not in (None, "")}
    if "execution_id" in found:
        try:
            found["partition"] = partition_of(found["execution_id"])
        except InvalidInput:
            # It is refused by the operation itself.
            del found["execution_id"]
    return found


def spanned(transport: Transport, traces: Traces) -> Transport:
    """The transport with a span around each call; itself when tracing is off."""
    if not traces.is_on:
        return transport

    def bind(declared: Operation[..., Any]) -> Call:
        call = transport(declared)

        async def in_span(*args: Any, **kwargs: Any) -> Any:
            about = ids_of(declared, declared.bind(args, kwargs))
            with traces.span(f"ff.{declared.name}", None, about):
                return await call(*args, **kwargs)

        return in_span

    return bind
