"""Signals, waitpoints, output and events."""

from collections.abc import Collection

from flowfabric.client.admin.asking import Asking, asked, params_of
from flowfabric.client.questions import attempt, execution, get, post, segment, waiting
from flowfabric.core.tokens import WaitpointToken
from flowfabric.errors import NotFound
from flowfabric.wire import signals as wire
from flowfabric.wire import streams


class SignalAdmin(Asking):
    # ---- signals

    async def signal(self, execution_id: str, body: wire.SendSignal) -> wire.SignalAnswer:
        """A signal has an id, so a repeat is known."""
        question = post(execution(execution_id, "signal"), body)
        return await self._ask(question, wire.SignalAnswer)

    async def list_pending_waitpoints(
        self, execution_id: str, after: str = "", limit: int = 100
    ) -> list[wire.OpenWaitpoint]:
        """Those that take signals now, by id; the next page is behind the last one's id."""
        question = get(execution(execution_id, "pending-waitpoints"), after=after, limit=limit)
        return await self._ask(question, list[wire.OpenWaitpoint])

    async def approve(
        self, execution_id: str, waitpoint_id: str, body: wire.Approve
    ) -> wire.SignalAnswer:
        """The decision of a person, who needs no token and is shown none."""
        path = execution(execution_id, "waitpoints", segment(waitpoint_id), "approve")
        question = post(path, body, is_safe=bool(body.idempotency_key))
        return await self._ask(question, wire.SignalAnswer)

    async def waitpoint_token(self, execution_id: str, waitpoint_id: str) -> WaitpointToken | None:
        path = execution(execution_id, "waitpoints", segment(waitpoint_id), "token")
        try:
            return WaitpointToken((await self._ask(get(path), wire.TokenAnswer)).token)
        except NotFound:
            return None

    # ---- output

    async def read_stream(
        self, execution_id: str, attempt_index: int, query: streams.RangeQuery | None = None
    ) -> streams.Frames:
        path = attempt(execution_id, attempt_index, "stream")
        return await self._ask(asked(path, query or streams.RangeQuery()), streams.Frames)

    async def tail_stream(
        self, execution_id: str, attempt_index: int, query: streams.TailQuery | None = None
    ) -> streams.Frames:
        """Frames behind a position; with none there, those that come in time."""
        path = attempt(execution_id, attempt_index, "stream", "tail")
        given = query or streams.TailQuery()
        question = waiting(path, "block_ms", given.block_ms, **params_of(given))
        return await self._ask(question, streams.Frames)

    async def read_summary(self, execution_id: str, attempt_index: int) -> streams.Summary | None:
        try:
            path = attempt(execution_id, attempt_index, "summary")
            return await self._ask(get(path), streams.Summary)
        except NotFound:
            return None

    # ---- events

    async def events(
        self, families: Collection[str] = (), query: streams.EventsQuery | None = None
    ) -> streams.Events:
        """One page of what happened; without a cursor it tells the present position."""
        given = query or streams.EventsQuery()
        parameters = {**params_of(given), "families": ",".join(families) or given.families}
        question = waiting("/v1/events", "wait_ms", given.wait_ms, **parameters)
        return await self._ask(question, streams.Events)
