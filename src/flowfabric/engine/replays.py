"""Replay: run a finished execution again, as a new attempt."""

from typing import Final

from flowfabric.backend.types import Seen, With
from flowfabric.core.checks import check_replay
from flowfabric.core.graph import Flow, reopen
from flowfabric.core.ids import check_text, parse_execution_id
from flowfabric.core.plan import Applied
from flowfabric.core.record import Record
from flowfabric.core.rules.operators import Reopening, ReplayRequest, replay
from flowfabric.core.states import public_state
from flowfabric.engine.deps import MOST_DECISIONS, Deps
from flowfabric.errors import ExecutionNotFound, FlowAlreadyTerminal, RetryExhausted
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
            for _ in range(MOST_DECISIONS):
                answer = await self._try(execution_id, asked)
                if answer is not None:
                    state = answer.brief.state
                    return public_state(state, "dependencies" if state == "blocked" else "")
        raise RetryExhausted(f"replay of {execution_id} lost every race; try again")

    async def _try(self, execution_id: str, asked: ReplayRequest) -> Applied | None:
        seen = await self._deps.store.read(execution_id, _WITH_GROUP)
        if seen is None:
            raise ExecutionNotFound(execution_id)
        check_replay(seen.record)
        flow = await self._flow(seen.record.flow_id)
        if flow is not None and flow.cancelled_at:
            raise FlowAlreadyTerminal(f"flow {flow.flow_id} is cancelled")
        plan = replay(seen.record, asked, await self._reopening(seen), seen.now)
        answer = await self._deps.store.apply(plan)
        if not isinstance(answer, Applied):
            return None
        if answer.more:
            self._deps.on_more(execution_id, seen.record.flow_id)
        return answer

    async def _flow(self, flow_id: str) -> Flow | None:
        if not flow_id:
            return None
        return (await self._deps.store.backend.flows([flow_id]))[0]

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
