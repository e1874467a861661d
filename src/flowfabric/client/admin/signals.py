"""Output and events."""

from collections.abc import Collection

from flowfabric.client.admin.asking import Asking, asked, params_of
from flowfabric.client.questions import attempt, get, waiting
from flowfabric.errors import NotFound
from flowfabric.wire import streams


class SignalAdmin(Asking):
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
