"""What operators do to one execution: hold, release, change priority or tags, resume, replay."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from flowfabric.backend.optimistic import WRITE_CONFLICT, WriteConflict, decide
from flowfabric.backend.types import Seen, With
from flowfabric.core.bounds import MAX_TAGS, check_number
from flowfabric.core.checks import check_priority, check_replay
from flowfabric.core.documents import MAILBOX, SUSPENSION
from flowfabric.core.flow_checks import flow_cancelled
from flowfabric.core.graph import reopen
from flowfabric.core.ids import check_lane, check_text, parse_execution_id, utf8_size
from flowfabric.core.plan import Applied, Plan
from flowfabric.core.record import Record
from flowfabric.core.rules import operators as rules
from flowfabric.core.rules import signals
from flowfabric.core.rules.operators import clamp_priority
from flowfabric.core.rules.replay import Dropped, Reopening, ReplayRequest, Scene, replay
from flowfabric.core.states import public_state
from flowfabric.core.suspensions import Suspension, suspension_in
from flowfabric.core.tags import check_tag_keys
from flowfabric.engine.audit import audit
from flowfabric.engine.checking import integer, stored, whole
from flowfabric.engine.deciding import decide_with_documents, read_flow
from flowfabric.engine.deps import Deps
from flowfabric.engine.executions.kept_steps import Order, kept_of, order_of
from flowfabric.errors import (
    ExecutionNotSuspended,
    ExecutionNotTerminal,
    InvalidInput,
    MaxReplaysExhausted,
)
from flowfabric.operations import executions as declared
from flowfabric.operations.declaration import implements
from flowfabric.operations.executions import (
    ExecutionHeld,
    ExecutionReleased,
    PriorityChanged,
    Replayed,
    Resumed,
    TagsUpdated,
)

TRIGGERS: Final = ("signal", "operator", "auto_resume")
_LONGEST_MS: Final = 2**52
_WITH_GROUP: Final = frozenset[With]({"group"})
_PAGE: Final = 1_000


class Operators:
    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    @implements(declared.Executions.hold)
    async def hold(self, execution_id: str, reason: str = "") -> ExecutionHeld:
        check_text(reason, "reason", 4096)
        await self._deps.decide(execution_id, lambda record, _: rules.hold(record, reason))
        return ExecutionHeld(execution_id)

    @implements(declared.Executions.release)
    async def release(self, execution_id: str) -> ExecutionReleased:
        parse_execution_id(execution_id, self._deps.counts)
        await self._deps.push(rules.release(execution_id))
        return ExecutionReleased(execution_id)

    @implements(declared.Executions.set_priority)
    async def set_priority(self, execution_id: str, new_priority: int) -> PriorityChanged:
        await self.change_priority(execution_id, new_priority)
        return PriorityChanged(execution_id)

    async def change_priority(self, execution_id: str, priority: int) -> tuple[int, int]:
        """Move runnable work in its queue; answers the old and the new priority."""
        new = clamp_priority(integer(priority, "new_priority"))
        old = 0

        def decision(record: Record, _: int) -> Plan | None:
            nonlocal old
            check_priority(record)
            old = record.priority
            return None if old == new else rules.change_priority(record, new)

        await self._deps.decide(execution_id, decision)
        return old, new

    @implements(declared.Executions.set_execution_tags)
    async def set_execution_tags(
        self, execution_id: str, tags: Mapping[str, object]
    ) -> TagsUpdated:
        """Write all pairs over what is there; how many were given. There is no delete."""
        given = given_tags(tags)

        def decision(record: Record, _: int) -> Plan:
            check_tag_keys(given)
            return rules.set_tags(record, given)

        await self._deps.decide(execution_id, decision)
        return TagsUpdated(len(given))

    async def set_execution_tag(self, execution_id: str, key: str, value: str) -> TagsUpdated:
        return await self.set_execution_tags(execution_id, {key: value})

    async def get_execution_tag(self, execution_id: str, key: str) -> str | None:
        """The tag's value; None when the tag or the whole execution is missing."""
        parse_execution_id(execution_id, self._deps.counts)
        check_tag_keys((key,))
        seen = await self._deps.store.read(execution_id)
        return seen.record.tags.get(key) if seen else None

    @implements(declared.Executions.resume)
    async def resume(
        self,
        execution_id: str,
        trigger_type: str = "operator",
        resume_delay_ms: int | None = None,
    ) -> Resumed:
        """End the suspension whatever its condition says."""
        if trigger_type not in TRIGGERS:
            raise InvalidInput(f"trigger_type: expected one of {', '.join(TRIGGERS)}")
        if resume_delay_ms is not None:
            whole(resume_delay_ms, "resume_delay_ms", 0, _LONGEST_MS)

        def decision(seen: Seen) -> tuple[Plan, None]:
            record = seen.record
            stored("record", check_lane, record.lane)
            if record.state != "suspended":
                raise ExecutionNotSuspended(f"{execution_id} is {record.state}")
            plan = signals.resume(record, _own_suspension(seen), trigger_type, resume_delay_ms)
            return plan, None

        applied, _ = await decide_with_documents(self._deps, execution_id, (SUSPENSION,), decision)
        assert applied is not None
        audit("execution_resumed", execution_id=execution_id, trigger_type=trigger_type)
        return Resumed(public_state(applied.brief.state, ""))

    @implements(declared.Executions.replay)
    async def replay(
        self,
        execution_id: str,
        reason: str = "",
        requested_by: str = "",
        steps: declared.Steps = "drop",
        steps_until: str = "",
    ) -> Replayed:
        """Run an execution again that has ended or is parked, as a new attempt. The answer is the
        public state it is in now: waiting, or waiting for dependencies again."""
        parse_execution_id(execution_id, self._deps.counts)
        request = ReplayRequest(
            check_text(reason, "reason", 4096), check_text(requested_by, "requested_by", 1024)
        )
        order = order_of(steps, check_text(steps_until, "steps_until", 2048))
        async with self._deps.locks.of(execution_id):
            attempt = partial(self._try_replay, execution_id, request, order)
            applied = await decide("execution", execution_id, attempt, self._deps.chance)
        return Replayed(applied.brief.public_state)

    async def _try_replay(
        self, execution_id: str, request: ReplayRequest, order: Order
    ) -> Applied | WriteConflict:
        seen = await self._deps.seen(execution_id, _WITH_GROUP, (MAILBOX,))
        check_replay(seen.record, await self._parent(seen.record))
        flow_id = seen.record.flow_id
        flow = await read_flow(self._deps, flow_id) if flow_id else None
        if flow is not None and flow.cancelled_at:
            raise flow_cancelled(flow_id)
        dropped = Dropped(unread=seen.documents)
        if order.keeps:
            kept = await kept_of(self._deps, seen.record, order)
            await self._replay_children(kept.children, request)
            dropped = Dropped(kept.first_dropped, mailbox=False, taken=kept.given_back)
        scene = Scene(seen.now, dropped, await self._reopening(seen))
        plan = replay(seen.record, request, scene)
        answer = await self._deps.apply(plan, seen.record)
        return answer if isinstance(answer, Applied) else WRITE_CONFLICT

    async def _replay_children(self, children: Sequence[str], request: ReplayRequest) -> None:
        """Those that ended with their parent go on first, so that it finds them live. One that
        cannot is met by the parent as it is."""
        for start in range(0, len(children), _PAGE):
            page = children[start : start + _PAGE]
            for seen in await self._deps.store.backend.read(page, frozenset()):
                if seen is None or seen.record.cancelled_by != "parent_end":
                    continue
                with suppress(ExecutionNotTerminal, MaxReplaysExhausted):
                    own = seen.record.execution_id
                    await self.replay(own, request.reason, request.requested_by, "keep")

    async def _parent(self, record: Record) -> Record | None:
        found = await self._deps.store.read(record.parent_id) if record.parent_id else None
        return found.record if found else None

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


def _own_suspension(seen: Seen) -> Suspension | None:
    """The open suspension. A record whose document is gone can be resumed all the same."""
    found = suspension_in(seen.documents)
    is_own = found is not None and found.suspension_id == seen.record.suspension_id
    return found if is_own else None


def given_tags(tags: object) -> dict[str, str]:
    """At least one pair, each with a value; whether the keys will do is asked later."""
    if not isinstance(tags, Mapping):
        raise InvalidInput(f"tags: expected an object, got {type(tags).__name__}")
    if not tags:
        raise InvalidInput("tags: expected at least one")
    check_number(tags, "tags", MAX_TAGS)
    for key, value in tags.items():
        if not isinstance(value, str):
            got = "nothing" if value is None else type(value).__name__
            raise InvalidInput(f"tags: {key}: expected a string, got {got}")
        if utf8_size(value) is None:
            raise InvalidInput(f"tags: {key}: not encodable as UTF-8")
    return dict(tags)
