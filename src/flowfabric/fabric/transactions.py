"""Submitting in a transaction of the caller's: the work exists exactly when it is committed."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar, Unpack

from flowfabric.app import callers_connection, creator_on
from flowfabric.engine import Engine
from flowfabric.engine.executions.submit import Create
from flowfabric.errors import ConfigError, FlowFabricError
from flowfabric.fabric.connection import LazyConnection
from flowfabric.fabric.options import Options, prepared
from flowfabric.fabric.runs import Run
from flowfabric.fabric.submitter import Submitter
from flowfabric.operations.executions import Submission, Submitted
from flowfabric.worker import codecs
from flowfabric.worker.children import BoundCall

R = TypeVar("R")


def bound(kind: str, payload: object, options: Options, namespace: str) -> BoundCall[Any]:
    """A call by the name of its kind; the payload is bytes or anything encodable."""
    body, encoding = (b"", "") if payload is None else codecs.encode(payload)
    return prepared(kind, options, namespace, typed=False).with_payload(body, encoding)


def runs_of(
    calls: Sequence[BoundCall[R]],
    answers: Sequence[Submitted | FlowFabricError],
    port: Callable[[], Awaitable[Submitter]],
) -> list[Run[R] | FlowFabricError]:
    return [
        answer
        if isinstance(answer, FlowFabricError)
        else Run(answer.execution_id, port, call.result_type)
        for call, answer in zip(calls, answers, strict=True)
    ]


class InTransaction:
    """Submits on a connection of the caller's, which neither commits nor rolls back. A run can be
    asked for its state and result once the transaction is committed."""

    def __init__(self, fabric: LazyConnection, namespace: str, connection: object) -> None:
        self._fabric = fabric
        self.namespace = namespace
        self._connection = callers_connection(connection)

    def on(self, connection: object) -> "InTransaction":
        return InTransaction(self._fabric, self.namespace, connection)

    async def submit(
        self, kind: str, payload: object = None, **options: Unpack[Options]
    ) -> Run[Any]:
        """Submit work by the name of its kind; the payload is bytes or anything encodable."""
        return await self.submit_bound(bound(kind, payload, options, self.namespace))

    async def submit_bound(self, call: BoundCall[R]) -> Run[R]:
        (submission,) = await self._submissions([call])
        submitted = await (await self._port()).submit(submission)
        return Run(submitted.execution_id, self._fabric.submitter, call.result_type)

    def run_of(self, execution_id: str, call: BoundCall[R]) -> Run[R]:
        """A run that is known by its id, with the result of a call."""
        return Run(execution_id, self._fabric.submitter, call.result_type)

    async def submit_many(self, calls: Iterable[BoundCall[R]]) -> list[Run[R] | FlowFabricError]:
        """Submit bound calls (`task.bind(…)`) together; answers in order, each by itself."""
        wanted = list(calls)
        answers = await (await self._port()).submit_many(await self._submissions(wanted))
        return runs_of(wanted, answers, self._fabric.submitter)

    async def call(self, call: BoundCall[R]) -> R:
        raise ConfigError("call: a worker sees it only after the commit; use submit")

    async def _submissions(self, calls: Sequence[BoundCall[Any]]) -> list[Submission]:
        is_delayed = any(call.delay_ms for call in calls)
        now = await (await self._fabric.submitter()).now() if is_delayed else 0
        return [call.at(now) for call in calls]

    async def _port(self) -> "_TransactionPort":
        engine = (await self._fabric.open()).engine
        if engine is None:
            raise ConfigError(
                "on: a server cannot write in a transaction of yours; open the database itself:"
                ' FlowFabric("postgresql://…")'
            )
        port = _TransactionPort(engine, creator_on(engine, self._connection))
        return self._fabric.wrapped(port)


class _TransactionPort:
    """The operations `submit` and `submit_many` in a transaction of the caller's."""

    def __init__(self, engine: Engine, create: Create) -> None:
        self._engine = engine
        self._create = create

    async def submit(self, submission: Submission) -> Submitted:
        (answer,) = await self.submit_many([submission])
        if isinstance(answer, FlowFabricError):
            raise answer
        return answer

    async def submit_many(
        self, submissions: Sequence[Submission]
    ) -> list[Submitted | FlowFabricError]:
        return await self._engine.executions.create_in_transaction(self._create, submissions)
