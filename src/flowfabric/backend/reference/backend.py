"""A store that runs the reference: every mechanism as a piece of work or a read."""

from collections.abc import Sequence
from functools import partial
from typing import Literal, TypeVar

from flowfabric.backend.base import Answered, Notifier, StoreCounters
from flowfabric.backend.reference import (
    claims,
    config,
    creation,
    feed,
    journal,
    presence,
    purge,
    reads,
    search,
    streams,
    verification,
)
from flowfabric.backend.reference.flow_store import ReferenceFlows
from flowfabric.backend.reference.limit_store import ReferenceLimits
from flowfabric.backend.reference.work import Runner, Work, attempt
from flowfabric.backend.types import (
    NO_DOCUMENTS,
    Append,
    Appended,
    ClaimAnswer,
    ClaimRequest,
    ConfigDocument,
    ConfigPut,
    CreateAnswer,
    Description,
    Discrepancy,
    DuePage,
    EventFilter,
    EventPage,
    Finished,
    FrameRange,
    JournalAppend,
    Journaled,
    JournalPage,
    ListRequest,
    Named,
    NamedClaim,
    Offer,
    Page,
    PutAnswer,
    Queue,
    Registered,
    Seen,
    StoredSummary,
    StreamRefused,
    With,
    Worker,
)
from flowfabric.core.duty_filter import EVERYBODY, DutyFilter
from flowfabric.core.new_execution import NewExecution
from flowfabric.core.plan import Answer, Plan, Refused
from flowfabric.errors import FlowFabricError
from flowfabric.operations.streams import FramePage

T = TypeVar("T")


class ReferenceBackend(ReferenceFlows, ReferenceLimits):
    """The protocol of a store over a place that runs transactions."""

    def __init__(self, runner: Runner, notifier: Notifier, description: Description) -> None:
        super().__init__(runner)
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

    async def create(self, items: Sequence[NewExecution]) -> list[Answered[CreateAnswer]]:
        return await self._runner.write(Work("create", creation.start_create, items))

    async def apply(self, plans: Sequence[Plan]) -> list[Answered[Answer]]:
        return await self._runner.write(Work("apply", claims.start_apply, plans))

    async def claim(self, requests: Sequence[ClaimRequest]) -> list[Answered[ClaimAnswer]]:
        return await self._runner.write(Work("claim", claims.start_claim, requests))

    async def lease(self, requests: Sequence[NamedClaim]) -> list[Answered[Offer | Refused]]:
        return await self._runner.write(Work("lease", claims.start_lease, requests))

    async def finish(self, plans: Sequence[Plan], claim: ClaimRequest) -> Finished:
        work = Work("finish", claims.start_finish, [(plans, claim)])
        return _only(await self._runner.write(work))

    async def append(self, items: Sequence[Append]) -> list[Answered[Appended | StreamRefused]]:
        return await self._runner.write(Work("append", streams.start_append, items))

    async def journal(self, items: Sequence[JournalAppend]) -> list[Answered[Journaled | Refused]]:
        return await self._runner.write(Work("journal", journal.start_journal, items))

    async def purge(
        self,
        limit: int,
        partitions: frozenset[int] = frozenset(),
        only: DutyFilter = EVERYBODY,
    ) -> int:
        order = purge.PurgeOrder(limit, partitions, only)
        work = Work("purge", purge.start_purge, [order])
        return _only(await self._runner.write(work))

    # ---- time

    async def due(
        self,
        limit: int,
        after: tuple[int, str] | None = None,
        partitions: frozenset[int] = frozenset(),
    ) -> DuePage:
        return await self._runner.read(lambda tx: reads.due(tx, limit, after, partitions))

    # ---- presence and config

    async def register(self, workers: Sequence[Worker]) -> list[Registered]:
        return _all(await self._runner.write(Work("register", presence.start_register, workers)))

    async def heartbeat(self, workers: Sequence[tuple[str, str]]) -> list[Registered]:
        return _all(await self._runner.write(Work("heartbeat", presence.start_heartbeat, workers)))

    async def leave(self, workers: Sequence[tuple[str, str]]) -> list[bool]:
        return _all(await self._runner.write(Work("leave", presence.start_leave, workers)))

    async def workers(self, namespace: str, after: str, limit: int) -> list[Worker]:
        return await self._runner.read(lambda tx: presence.workers(tx, namespace, after, limit))

    async def config_get(self, names: Sequence[str]) -> list[ConfigDocument | None]:
        return await self._runner.read(lambda tx: config.get(tx, names))

    async def config_put(self, puts: Sequence[ConfigPut]) -> list[PutAnswer]:
        return _all(await self._runner.write(Work("config_put", config.start_put, puts)))

    async def config_list(self, prefix: str, after: str, limit: int) -> list[ConfigDocument]:
        return await self._runner.read(lambda tx: config.listed(tx, prefix, after, limit))

    # ---- reads

    async def read(
        self, ids: Sequence[str], include: frozenset[With], documents: Named = NO_DOCUMENTS
    ) -> list[Seen | None]:
        return await self._runner.read(lambda tx: reads.read(tx, ids, include, documents))

    async def search(self, request: ListRequest) -> Page:
        return await self._runner.read(lambda tx: search.search(tx, request))

    async def count(self, namespace: str, lane: str) -> dict[str, int]:
        return await self._runner.read(lambda tx: reads.count(tx, namespace, lane))

    async def queues(self, namespace: str, lane: str) -> list[Queue]:
        return await self._runner.read(lambda tx: reads.queues(tx, namespace, lane))

    async def frames(self, ranges: Sequence[FrameRange]) -> list[Answered[FramePage]]:
        return await self._runner.read(
            lambda tx: [
                attempt(tx, "frames", partial(streams.read_frames, tx, wanted)) for wanted in ranges
            ]
        )

    async def summary(self, execution_id: str, attempt: int) -> StoredSummary | None:
        return await self._runner.read(lambda tx: streams.read_summary(tx, execution_id, attempt))

    async def journal_read(self, execution_id: str, after: int, limit: int) -> JournalPage:
        return await self._runner.read(
            lambda tx: journal.read_journal(tx, execution_id, after, limit)
        )

    async def events(self, cursor: bytes, wanted: EventFilter, limit: int) -> EventPage:
        tag = self._description.tag
        return await self._runner.read(lambda tx: feed.events(tx, tag, cursor, wanted, limit))

    async def cursor(self, position: Literal["now", "oldest"]) -> bytes:
        tag = self._description.tag
        return await self._runner.read(lambda tx: feed.cursor_at(tx, tag, position))

    async def verify(self) -> list[Discrepancy]:
        return await self._runner.read(verification.verify)


def _all(answers: list[Answered[T]]) -> list[T]:
    """The answers of a call that has no errors of single items: one fails it as a whole."""
    for answer in answers:
        if isinstance(answer, FlowFabricError):
            raise answer
    return [answer for answer in answers if not isinstance(answer, FlowFabricError)]


def _only(answers: list[Answered[T]]) -> T:
    (answer,) = _all(answers)
    return answer
