"""Replay: run a finished execution again, as a new attempt."""

from functools import partial
from typing import Final

from flowfabric.backend.optimistic import WRITE_CONFLICT, WriteConflict, decide
from flowfabric.backend.types import Seen, With
from flowfabric.core.checks import check_replay
from flowfabric.core.flow_checks import flow_cancelled
from flowfabric.core.graph import Flow, reopen
from flowfabric.core.ids import check_text, parse_execution_id
from flowfabric.core.plan import Applied
from flowfabric.core.record import Record
from flowfabric.core.rules.operators import Reopening, ReplayRequest, replay
from flowfabric.engine.deciding import read_flow
from flowfabric.engine.deps import Deps
from flowfabric.operations import executions as declared
from flowfabric.operations.declaration import implements
from flowfabric.operations.executions import Replayed

_WITH_GROUP: Final = frozenset[With]({"group"})
_PAGE: Final = 1_000


class Replays:
    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    @implements(declared.Executions.replay)
    async def run_again(
        self, execution_id: str, reason: str = "", requested_by: str = ""
    ) -> Replayed:
        return Replayed(await self.replay(execution_id, ReplayRequest(reason, requested_by)))

    async def replay(self, execution_id: str, request: ReplayRequest | None = None) -> str:
        """The public state the execution is in now: waiting, or waiting for dependencies again."""
        parse_execution_id(execution_id, self._deps.counts)
        asked = request or ReplayRequest()
        check_text(asked.reason, "reason", 4096)
        check_text(asked.requested_by, "requested_by", 1024)
        async with self._deps.locks.of(execution_id):
            attempt = partial(self._try, execution_id, asked)
            applied = await decide("execution", execution_id, attempt, self._deps.chance)
        return applied.brief.public_state

    async def _try(self, execution_id: str, asked: ReplayRequest) -> Applied | WriteConflict:
        seen = await self._deps.seen(execution_id, _WITH_GROUP)
        check_replay(seen.record)
        flow = await self._flow(seen.record.flow_id)
        if flow is not None and flow.cancelled_at:
            raise flow_cancelled(flow.flow_id)
        plan = replay(seen.record, asked, await self._reopening(seen), seen.now)
        answer = await self._deps.apply(plan, seen.record)
        return answer if isinstance(answer, Applied) else WRITE_CONFLICT

    async def _flow(self, flow_id: str) -> Flow | None:
        return await read_flow(self._deps, flow_id) if flow_id else None

    async def _reopening(self, seen: Seen) -> Reopening | None:
        """A skipped member waits again for the edges that could not be satisfied."""
        if seen.record.state != "skipped" or seen.group is None:
            return None
        sources = await self._sources(seen)
        edit = reopen(seen.group, seen.incoming, sources)
        done = {own for own, source in sources.items() if source.state == "completed"}
        return Reopening(edit, sum(edge.source not in done for edge in edit.edges))

    async def _sources(self, seen: Seen) -> dict[str, Record]:
        """Where the edges come from that are not satisfied."""
        ids = [edge.source for edge in seen.incoming if edge.state in ("open", "impossible")]
        sources: dict[str, Record] = {}
        for start in range(0, len(ids), _PAGE):
            found = await self._deps.store.backend.read(ids[start : start + _PAGE], frozenset())
            sources |= {one.record.execution_id: one.record for one in found if one is not None}
        return sources
