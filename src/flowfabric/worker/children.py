"""Children: executions that a handler starts and waits for, without holding a worker."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import (
    Any,
    Final,
    Generic,
    NamedTuple,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
)

import msgspec

from flowfabric.core.due import DEADLINE
from flowfabric.core.journal import CHILD
from flowfabric.core.policy import decode_policy
from flowfabric.errors import (
    CallTimeout,
    ConfigError,
    ExecutionCancelled,
    ExecutionExpired,
    ExecutionFailed,
    ExecutionSkipped,
    FlowFabricError,
)
from flowfabric.operations.attempts import CancelChildren
from flowfabric.operations.execution_queries import Ended
from flowfabric.operations.executions import OnParentEnd, Submission
from flowfabric.operations.workers import WaitChildren
from flowfabric.worker import codecs
from flowfabric.worker.calls import fence_of
from flowfabric.worker.cancelling import cancelled_as_before, kept_cancel
from flowfabric.worker.parking import Part, WaitingCall, parking_of
from flowfabric.worker.session import JournalKey, Paused, Session
from flowfabric.worker.steps import journaled, kept_failures, value_of

P = ParamSpec("P")
R = TypeVar("R")


class BoundCall(msgspec.Struct, Generic[R], frozen=True, kw_only=True):
    """A task with its arguments, ready to be submitted. The type of the result is asked late:
    it may not be defined yet when the call is made ready."""

    submission: Submission
    result_type: Callable[[], Any]
    delay_ms: int = 0

    def with_payload(self, body: bytes, encoding: str) -> "BoundCall[R]":
        asked = msgspec.structs.replace(self.submission, input=body, payload_encoding=encoding)
        return BoundCall(submission=asked, result_type=self.result_type, delay_ms=self.delay_ms)

    def at(self, now: int) -> Submission:
        """The submission with its delay as an instant."""
        if not self.delay_ms:
            return self.submission
        return msgspec.structs.replace(self.submission, delay_until=now + self.delay_ms)


class Callee(Protocol[P, R]):
    """What can be called as a child: a task."""

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> BoundCall[R]: ...

    def takes(self, name: str) -> bool: ...


class ChildTerms(msgspec.Struct, frozen=True):
    """What the parent says about a child, beside the task and its options."""

    on_parent_end: OnParentEnd = "cancel"
    timeout_ms: int | None = None

    def deadline_of(self, call: BoundCall[Any], now: int) -> int | None:
        """When the child is ended for its parent. A deadline of its own that comes first is told
        as the child's own end."""
        asked = call.submission
        if self.timeout_ms is None or asked.deadline_at is not None:
            return asked.deadline_at
        if asked.idempotency_key:
            raise ConfigError(
                f"call {asked.kind}: timeout: a child with an idempotency key may be somebody"
                " else's, who still waits for it; leave out one of the two"
            )
        return now + self.timeout_ms if self.is_first(call) else None

    def is_first(self, call: BoundCall[Any]) -> bool:
        """Whether the timeout of the call comes before the task's own deadline."""
        if self.timeout_ms is None or call.submission.deadline_at is not None:
            return False
        own = decode_policy(call.submission.policy).timeout_policy
        deadline_ms = own.execution_deadline_ms if own else None
        return not deadline_ms or self.timeout_ms < deadline_ms


CANCELLED_WITH: Final = ChildTerms()
# Why a child is cancelled that is one of several waits and not the first.
RACE_LOST: Final = "race lost"


class Child(Generic[R]):
    """A child that was submitted. Awaiting its result parks the parent until it has ended."""

    def __init__(
        self,
        children: "Children",
        execution_id: str,
        call: BoundCall[R],
        terms: ChildTerms,
        *,
        is_new: bool,
    ) -> None:
        """`is_new`: this entry of the handler submitted it."""
        self._children = children
        self._call = call
        self._terms = terms
        self.id = execution_id
        self.is_new = is_new
        # Its end is an outcome of its own beside that of its submission.
        self._key = JournalKey(f"ff.result {execution_id}", 1)

    def result(self) -> WaitingCall[R]:
        """Its result, or its failure; the parent frees its worker until then."""
        return WaitingCall(
            self._children.result_of(self), lambda: ChildWait(self._children, child=self)
        )

    @property
    def key(self) -> JournalKey:
        return self._key

    @property
    def kind(self) -> str:
        return self._call.submission.kind

    def raise_recorded(self, session: Session) -> None:
        session.raise_recorded(self._key, self.id, self._call.submission.kind)

    def decode(self, session: Session, ended: Ended) -> R:
        kind = self._call.submission.kind
        with kept_failures(session, self._key, self.id, kind):
            is_late = (ended.state, ended.reason) == ("expired", DEADLINE)
            if is_late and self._terms.is_first(self._call):
                seconds = (self._terms.timeout_ms or 0) / 1000
                raise CallTimeout(f"{kind} had not ended after {seconds:g} s")
            value: R = value_of_end(ended, self._call.result_type())
        return value


class Call(WaitingCall[R]):
    """A call of a child that has not begun: await it, or hand several to `gather`."""

    __slots__ = ("_children", "_terms", "bound")

    def __init__(
        self, children: "Children", call: BoundCall[R], terms: ChildTerms = CANCELLED_WITH
    ) -> None:
        self._children = children
        self._terms = terms
        self.bound = call
        super().__init__(self._result(), lambda: ChildWait(children, call=self))

    async def begin(self) -> Child[R]:
        return await self._children.submit(self.bound, self._terms)

    async def _result(self) -> R:
        return await self._children.result_of(await self.begin(), is_begun_now=True)


class ChildWait(Generic[R]):
    """A child that is one of several waits."""

    taken: tuple[int, ...] = ()
    is_alone = False

    def __init__(
        self, children: "Children", call: Call[R] | None = None, child: Child[R] | None = None
    ) -> None:
        self._children = children
        self._call = call
        self._child = child
        self._ended: Ended | None = None

    @property
    def child(self) -> Child[R]:
        assert self._child is not None
        return self._child

    @property
    def place(self) -> str:
        return self.child.id

    async def begin(self) -> None:
        if self._call is not None:
            self._child = await self._call.begin()

    async def run(self) -> R:
        await self.begin()
        return await self._children.result_of(self.child)

    async def look(self) -> int | None:
        self._ended = await self._children.end_of(self.child)
        if self._ended is None or _is_given_up(self._ended):
            return None
        return self._ended.completed_at

    def part(self) -> Part:
        return Part(children=(self.child.id,))

    async def leave(self) -> None:
        self._children.leave((self.child.id,))

    def kept(self) -> None:
        """Its end stays where it is."""

    async def restore(self, kept: object) -> None:
        self._ended = self._ended or await self._children.end_of(self.child)

    async def give_up(self) -> None:
        if self._ended is None:
            await self._children.cancel(self.child.id)

    def value(self) -> R:
        assert self._ended is not None
        return self._children.value_of(self.child, self._ended)


class _AllOf(NamedTuple):
    """Children that are waited for together."""

    children: "Children"
    ids: tuple[str, ...]

    @property
    def place(self) -> str:
        return " ".join(self.ids)

    def part(self) -> Part:
        return Part(children=self.ids)

    async def leave(self) -> None:
        self.children.leave(self.ids)


class Children:
    def __init__(self, session: Session) -> None:
        self._session = session

    async def submit(self, call: BoundCall[R], terms: ChildTerms = CANCELLED_WITH) -> Child[R]:
        """Create the child, or find the one that this very call created before."""
        session = self._session
        asked = call.at(session.now())
        content = hashlib.sha256(asked.input).hexdigest()[:16]

        is_new = False

        async def create(key: JournalKey) -> str:
            nonlocal is_new
            is_new, claim = True, session.claim
            own = f"child/{claim.execution_id}/{claim.round}/{asked.kind}/{key.seq}"
            child = msgspec.structs.replace(
                asked,
                idempotency_key=asked.idempotency_key or own,
                namespace=claim.namespace,
                creator=asked.creator or claim.execution_id,
                deadline_at=terms.deadline_of(call, session.now()),
                on_parent_end=terms.on_parent_end,
            )
            return await session.call(lambda: session.calls.submit_child(claim, child))

        name = CHILD + asked.kind
        found = await journaled(session, name, asked.kind, (content,), create)
        return Child(self, value_of(found, str), call, terms, is_new=is_new)

    async def gather(self, items: Sequence["Awaitable[R] | BoundCall[R]"]) -> list[R]:
        """All results in order; the first failure is raised once all have ended. Steps run beside
        each other, and children are waited for together."""
        waited = [Call(self, one) if isinstance(one, BoundCall) else one for one in items]
        _check_awaitable(waited)
        calls = [one for one in waited if isinstance(one, Call)]
        others = [asyncio.ensure_future(_value(one)) for one in waited if not isinstance(one, Call)]
        try:
            begun: list[Child[R]] = await asyncio.gather(*(one.begin() for one in calls))
            values, ends = await asyncio.gather(
                asyncio.gather(*others, return_exceptions=True),
                self._outcomes(begun, is_begun_now=not others),
            )
        finally:
            for task in others:
                task.cancel()
            for call in calls:
                call.close()
        for value in values:
            if isinstance(value, Paused):
                raise value
        ended, rest = iter(ends), iter(values)
        found = [next(ended if isinstance(one, Call) else rest) for one in waited]
        for outcome in found:
            if isinstance(outcome, BaseException):
                raise outcome
        return cast(list[R], found)

    async def _outcomes(
        self, children: Sequence[Child[R]], *, is_begun_now: bool
    ) -> list[R | Exception]:
        """The results and failures of children, all of which have ended."""
        if not children:
            return []
        ended = await self._ended(children, is_begun_now=is_begun_now)
        found: list[R | Exception] = []
        for one, end in zip(children, ended, strict=True):
            try:
                one.raise_recorded(self._session)
                found.append(one.decode(self._session, end))
            except Exception as fault:
                found.append(fault)
        return found

    async def _ended(
        self, children: Sequence[Child[R]], *, is_begun_now: bool = False
    ) -> list[Ended]:
        """How all of them ended; pauses until they have. Children that
        were submitted a moment ago are not asked: the pause itself notices one that has ended."""
        session = self._session
        session.check()
        ids = tuple(dict.fromkeys(one.id for one in children))
        if is_begun_now and all(one.is_new for one in children):
            await parking_of(session).park(_AllOf(self, ids))
        while True:
            ended = await session.under_lease(session.calls.ended(ids))
            left = tuple(one for one, end in zip(ids, ended, strict=True) if end is None)
            if not left:
                found = dict(zip(ids, ended, strict=True))
                return [cast(Ended, found[one.id]) for one in children]
            await parking_of(session).park(_AllOf(self, left))

    def leave(self, ids: tuple[str, ...]) -> NoReturn:
        raise self._session.pause(WaitChildren(ids))

    async def end_of(self, child: Child[Any]) -> Ended | None:
        session = self._session
        (ended,) = await session.under_lease(session.calls.ended([child.id]))
        return ended

    def value_of(self, child: Child[R], ended: Ended) -> R:
        child.raise_recorded(self._session)
        return child.decode(self._session, ended)

    async def cancel(self, child_id: str) -> None:
        """Give up a child that another wait was faster than."""
        session = self._session
        order = CancelChildren(**fence_of(session.claim), children=(child_id,), reason=RACE_LOST)
        await session.call(lambda: session.calls.cancel_children(order))

    async def result_of(self, child: Child[R], *, is_begun_now: bool = False) -> R:
        try:
            child.raise_recorded(self._session)
        except asyncio.CancelledError:
            await cancelled_as_before(self._session)
        with kept_cancel(self._session, child.key, child.id, child.kind):
            (ended,) = await self._ended([child], is_begun_now=is_begun_now)
        return child.decode(self._session, ended)


def _check_awaitable(items: Sequence[object]) -> None:
    """Refused before anything begins; what was made to be awaited is closed."""
    wrong = next((one for one in items if not isinstance(one, Awaitable)), None)
    if wrong is None:
        return
    for one in items:
        if asyncio.iscoroutine(one):
            one.close()
    raise ConfigError(
        f"gather: expected calls of the context or `task.bind(…)`, got {type(wrong).__name__}"
    )


def _is_given_up(ended: Ended) -> bool:
    """By this very race, in an entry that was killed before it recorded the winner."""
    return (ended.state, ended.reason) == ("cancelled", RACE_LOST)


async def _value(awaited: Awaitable[R]) -> R:
    return await awaited


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
