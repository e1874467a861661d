"""What a type checker knows of operations on flows: awaited, blocking and over HTTP."""

from typing import Any, assert_type

from flowfabric.client.operations import http_transport
from flowfabric.client.rest import Rest
from flowfabric.fabric.admin import SyncAdmin
from flowfabric.operations.declaration import AsyncCalls, operations_of
from flowfabric.operations.flow_queries import FlowQueries, FlowSnapshot, Member
from flowfabric.operations.flows import FlowCreated, FlowExists, Flows
from flowfabric.operations.types import Page


class Calls(AsyncCalls, Flows, FlowQueries):
    pass


async def checked(rest: Rest, blocking: SyncAdmin) -> None:
    """Only a type checker reads this."""
    calls = Calls(http_transport(rest))
    assert_type(await calls.describe_flow("x"), FlowSnapshot)
    assert_type(await calls.list_members("x", limit=5), Page[Member])
    assert_type(await calls.create_flow(), FlowCreated | FlowExists)
    assert_type(blocking.describe_flow("x"), FlowSnapshot)
    assert_type(blocking.list_members("x", "", 5), Page[Member])


def test_every_operation_on_flows_is_bound_on_first_access() -> None:
    bound: list[str] = []

    def transport(declared: Any) -> Any:
        bound.append(declared.name)
        return lambda *args: args

    calls = Calls(transport)
    for declared in operations_of(Flows):
        getattr(calls, declared.name)
        assert getattr(calls, declared.name)("x") == ("x",)
    assert bound == [declared.name for declared in operations_of(Flows)]
