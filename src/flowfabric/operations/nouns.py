"""The nouns: the only list of all operations."""

from flowfabric.operations.attempts import HeldAttempts
from flowfabric.operations.budgets import Budgets
from flowfabric.operations.declaration import AsyncCalls, operations_of
from flowfabric.operations.execution_queries import ExecutionQueries
from flowfabric.operations.executions import Executions
from flowfabric.operations.flow_queries import FlowQueries
from flowfabric.operations.flows import Flows
from flowfabric.operations.lanes import Lanes
from flowfabric.operations.schedules import Schedules
from flowfabric.operations.signals import Signals
from flowfabric.operations.store import Store
from flowfabric.operations.streams import Streams
from flowfabric.operations.tasks import Tasks
from flowfabric.operations.tokens import Tokens
from flowfabric.operations.workers import Workers


class Operations(
    Executions,
    ExecutionQueries,
    Signals,
    Streams,
    Flows,
    FlowQueries,
    Budgets,
    Lanes,
    Schedules,
    Tasks,
    Workers,
    HeldAttempts,
    Store,
    Tokens,
):
    """Every declared operation. Names are unique over all nouns: mypy refuses a clash."""


class Calls(AsyncCalls, Operations):
    """Every operation as a coroutine function, over any transport."""


NOUNS = Operations.__bases__
DECLARED = operations_of(*NOUNS)
