"""A store that runs the reference: every mechanism as a batch of work or a read."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from flowfabric.backend.base import Answered, Notifier, StoreCounters
from flowfabric.backend.reference import (
    admission,
    claims,
    config,
    creation,
    feed,
    presence,
    reads,
    streams,
    verification,
)
from flowfabric.backend.reference import budgets as budget_steps
from flowfabric.backend.reference import flows as flow_steps
from flowfabric.backend.reference.definitions import start_define
from flowfabric.backend.reference.gates import read_gates
from flowfabric.backend.reference.journal import read_journal, start_journal
from flowfabric.backend.reference.purge import PurgeOrder, start_purge
from flowfabric.backend.reference.search import read_page
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.work import Runner, Start, Work
from flowfabric.backend.types import ClaimRequest, Description, EventFilter, EventPage, Finished
from flowfabric.core.duty_filter import EVERYBODY, DutyFilter
from flowfabric.core.plan import Plan
from flowfabric.core.retention import LOG_LIMITS, LogLimits
from flowfabric.errors import FlowFabricError

I = TypeVar("I")  # noqa: E741
A = TypeVar("A")
T = TypeVar("T")
P = ParamSpec("P")

_Batch = Callable[["ReferenceBackend", Sequence[I]], Coroutine[Any, Any, A]]


def _batch(name: str, start: Start[I, A]) -> _Batch[I, list[Answered[A]]]:
    """A method that does a batch; an item that fails is answered by its error."""

    async def do(self: "ReferenceBackend", items: Sequence[I]) -> list[Answered[A]]:
        return await self._runner.write(Work(name, start, items))

    return do


def _all_or_error(name: str, start: Start[I, A]) -> _Batch[I, list[A]]:
    """A method that does a batch; the error of an item is raised."""

    async def do(self: "ReferenceBackend", items: Sequence[I]) -> list[A]:
        return _all(await self._runner.write(Work(name, start, items)))

    return do


def _read(
    read: Callable[Concatenate[Transaction, P], T],
) -> Callable[Concatenate["ReferenceBackend", P], Coroutine[Any, Any, T]]:
    async def do(self: "ReferenceBackend", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._runner.read(lambda tx: read(tx, *args, **kwargs))

    return do


class ReferenceBackend:
    """The protocol of a store over a place that runs transactions."""

    def __init__(self, runner: Runner, notifier: Notifier, description: Description) -> None:
        self._runner = runner
        self._notifier = notifier
        self._description = description

    def describe(self) -> Description:
        return self._description

    def counters(self) -> StoreCounters:
        return self._runner.counters

    def notifier(self) -> Notifier:
        return self._notifier

    async def prepare(self) -> None:
        await self._runner.prepare()

    async def ping(self) -> None:
        await self._runner.read(lambda tx: tx.tables.config_revision())

    async def close(self) -> None:
        await self._runner.close()

    async def now(self) -> int:
        return self._runner.clock()

    # ---- changes

    create = _batch("create", creation.start_create)
    apply = _batch("apply", claims.start_apply)
    claim = _batch("claim", claims.start_claim)
    lease = _batch("lease", claims.start_lease)
    append = _batch("append", streams.start_append)
    journal = _batch("journal", start_journal)

    async def finish(self, plans: Sequence[Plan], claim: ClaimRequest) -> Finished:
        work = Work("finish", claims.start_finish, [(plans, claim)])
        (finished,) = _all(await self._runner.write(work))
        return finished

    async def purge(
        self,
        limit: int,
        partitions: frozenset[int] = frozenset(),
        only: DutyFilter = EVERYBODY,
        log: LogLimits = LOG_LIMITS,
    ) -> int:
        work = Work("purge", start_purge, [PurgeOrder(limit, partitions, only, log)])
        (purged,) = _all(await self._runner.write(work))
        return purged

    # ---- flows

    create_graph = _batch("create_graph", flow_steps.start_create_graph)
    apply_flows = _batch("apply_flows", flow_steps.start_apply_flows)
    settle = _batch("settle", flow_steps.start_settle)
    flows = _read(flow_steps.read_flows)
    flows_in = _read(flow_steps.flows_in)
    flows_by_age = _read(flow_steps.flows_by_age)
    members = _read(flow_steps.read_members)
    edges = _read(flow_steps.read_edges)
    groups = _read(flow_steps.read_groups)

    # ---- limits

    define = _batch("define", start_define)
    spend = _batch("spend", budget_steps.start_spend)
    release = _batch("release", budget_steps.start_release)
    reset = _batch("reset", budget_steps.start_reset)
    reserve = _batch("reserve", budget_steps.start_reserve)
    commit = _batch("commit", budget_steps.start_commit)
    cancel = _batch("cancel", budget_steps.start_cancel)
    admit = _batch("admit", admission.start_admit)
    extend = _batch("extend", admission.start_extend)
    vacate = _batch("vacate", admission.start_vacate)
    budgets = _read(budget_steps.read_budgets)
    gates = _read(read_gates)
    attached = _read(budget_steps.read_attached)

    async def refresh_hints(self) -> None:
        """There are none."""

    # ---- presence and config

    register = _all_or_error("register", presence.start_register)
    heartbeat = _all_or_error("heartbeat", presence.start_heartbeat)
    leave = _all_or_error("leave", presence.start_leave)
    workers = _read(presence.workers)
    config_get = _read(config.get)
    config_put = _all_or_error("config_put", config.start_put)
    config_list = _read(config.listed)

    # ---- reads

    read = _read(reads.read)
    due = _read(reads.due)
    search = _read(read_page)
    count = _read(reads.count)
    queues = _read(reads.queues)
    frames = _read(streams.read_ranges)
    summary = _read(streams.read_summary)
    journal_read = _read(read_journal)
    verify = _read(verification.verify)

    async def events(self, cursor: bytes, wanted: EventFilter, limit: int) -> EventPage:
        tag = self._description.tag
        return await self._runner.read(lambda tx: feed.events(tx, tag, cursor, wanted, limit))

    async def cursor(self, position: Literal["now", "oldest"]) -> bytes:
        tag = self._description.tag
        return await self._runner.read(lambda tx: feed.cursor_at(tx, tag, position))


def _all(answers: list[Answered[T]]) -> list[T]:
    """The answers of a call that has no errors of single items: one fails it as a whole."""
    for answer in answers:
        if isinstance(answer, FlowFabricError):
            raise answer
    return [answer for answer in answers if not isinstance(answer, FlowFabricError)]
