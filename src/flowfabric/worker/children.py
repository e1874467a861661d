"""Children: executions that a handler starts and waits for, without holding a worker."""

import asyncio
import hashlib
from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

import msgspec

from flowfabric.errors import (
    ExecutionCancelled,
    ExecutionExpired,
    ExecutionFailed,
    ExecutionSkipped,
    FlowFabricError,
)
from flowfabric.operations.execution_queries import Ended
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import WaitChildren
from flowfabric.worker import codecs
from flowfabric.worker.session import JournalKey, Session
from flowfabric.worker.steps import journaled, value_of

P = ParamSpec("P")
R = TypeVar("R")


class BoundCall(msgspec.Struct, Generic[R], frozen=True, kw_only=True):
    """A task with its arguments, ready to be submitted. The type of the result is asked late:
    it may not be defined yet when the call is made ready."""

    submission: Submission
    result_type: Callable[[], Any]
    delay_ms: int = 0

    def at(self, now: int) -> Submission:
        """The submission with its delay as an instant."""
        if not self.delay_ms:
            return self.submission
        return msgspec.structs.replace(self.submission, delay_until=now + self.delay_ms)


class Callee(Protocol[P, R]):
    """What can be called as a child: a task."""

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> BoundCall[R]: ...


class Child(Generic[R]):
    """A child that was submitted. Awaiting its result parks the parent until it has ended."""

    def __init__(self, children: "Children", execution_id: str, call: BoundCall[R]) -> None:
        self._children = children
        self._call = call
        self.id = execution_id

    async def result(self) -> R:
        (value,) = await self._children.results([self])
        return value

    def decode(self, ended: Any) -> R:
        value: R = value_of_end(ended, self._call.result_type())
        return value


class Call(Generic[R]):
    """A call of a child that has not begun: await it, or hand several to `gather`."""

    def __init__(self, children: "Children", call: BoundCall[R]) -> None:
        self._children = children
        self.bound = call

    async def begin(self) -> Child[R]:
        return await self._children.submit(self.bound)

    def __await__(self) -> Generator[Any, None, R]:
        return self._result().__await__()

    async def _result(self) -> R:
        return await (await self.begin()).result()


class Children:
    def __init__(self, session: Session) -> None:
        self._session = session

    async def submit(self, call: BoundCall[R]) -> Child[R]:
        """Create the child, or find the one that this very call created before."""
        session = self._session
        asked = call.at(session.now())
        content = hashlib.sha256(asked.input).hexdigest()[:16]

        async def create(key: JournalKey) -> str:
            claim = session.claim
            own = f"child/{claim.execution_id}/{claim.replay_count}/{asked.kind}/{key.seq}"
            child = msgspec.structs.replace(
                asked,
                idempotency_key=asked.idempotency_key or own,
                namespace=claim.namespace,
                creator=asked.creator or claim.execution_id,
            )
            return await session.call(lambda: session.calls.submit_child(claim, child))

        name = f"ff.child {asked.kind}"
        found = await journaled(session, name, asked.kind, (content,), create)
        return Child(self, value_of(found, str), call)

    async def gather(self, calls: Sequence[Call[R]]) -> list[R]:
        children = await asyncio.gather(*(one.begin() for one in calls))
        return await self.results(children)

    async def results(self, children: Sequence[Child[R]]) -> list[R]:
        """All results in order; the first failure is raised once all have ended."""
        session = self._session
        session.check()
        ended = await session.calls.ended([one.id for one in children])
        left = [one.id for one, end in zip(children, ended, strict=True) if end is None]
        if left:
            await session.drain_steps()
            raise session.pause(WaitChildren(tuple(dict.fromkeys(left))))
        return [one.decode(end) for one, end in zip(children, ended, strict=True)]


# ---- ends


def value_of_end(ended: Ended, type_: Any, traceback: str = "") -> Any:
    """The decoded result of an execution; any other end is raised."""
    if ended.state == "completed":
        try:
            return codecs.decode(ended.result, ended.result_encoding, type_)
        except codecs.Undecodable as fault:
            raise codecs.Undecodable(f"the result of {ended.execution_id}: {fault}") from fault
    raise _error_of_end(ended, traceback)


def _error_of_end(ended: Ended, traceback: str) -> FlowFabricError:
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
