"""Children: executions that a handler starts and waits for, without holding a worker."""

import asyncio
import hashlib
from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

import msgspec

from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import WaitChildren
from flowfabric.worker.ends import value_of_end
from flowfabric.worker.session import Session, retried
from flowfabric.worker.steps import describe, recorded, value_of

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
        at = session.address(f"ff.child {asked.kind}")
        content = hashlib.sha256(asked.input).hexdigest()[:16]
        call_text, digest = describe(asked.kind, (content,), {})
        found = session.recorded(at, digest, call_text)
        if found is None:
            claim = session.claim
            key = f"child/{claim.execution_id}/{claim.replay_count}/{asked.kind}/{at.seq}"
            child = msgspec.structs.replace(
                asked,
                idempotency_key=asked.idempotency_key or key,
                namespace=claim.namespace,
                creator=asked.creator or claim.execution_id,
            )
            made = await session.under_lease(
                retried(lambda: session.calls.submit_child(claim, child))
            )
            found = await session.record(at, digest, recorded(call_text, made))
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
