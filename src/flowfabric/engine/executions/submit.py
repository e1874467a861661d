"""Submitting executions."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter
from typing import Any, Final, get_args

import msgspec

from flowfabric.backend.base import Answered
from flowfabric.backend.types import CreateAnswer, Created, Duplicate, With
from flowfabric.core.capabilities import set_id
from flowfabric.core.checks import explain_create
from flowfabric.core.ids import (
    MAX_KIND_BYTES,
    check_lane,
    check_namespace,
    check_text,
    compose,
    parse_execution_id,
    parse_uuid,
    partition_of,
)
from flowfabric.core.new_execution import NewExecution, difference
from flowfabric.core.policy import ExecutionPolicy, RawPolicy, decode_policy, freeze, is_cacheable
from flowfabric.core.queues import queue_of
from flowfabric.core.record import Record
from flowfabric.core.rules.operators import clamp_priority
from flowfabric.core.states import accepts_submissions, not_open, public_state
from flowfabric.core.tags import submitted_tags
from flowfabric.engine.checking import JSON, MAX_INSTANT, body, integer, json_input, whole
from flowfabric.engine.deps import Deps
from flowfabric.engine.lanes import Lanes
from flowfabric.engine.limits.names import KnownLimits, resolved
from flowfabric.engine.task_options import DeclaredOptions
from flowfabric.errors import (
    Conflict,
    FlowFabricError,
    InvalidInput,
    InvariantViolation,
    LaneNotAccepting,
    PartitionMismatch,
)
from flowfabric.operations import executions as declared
from flowfabric.operations.declaration import implements
from flowfabric.operations.executions import (
    ExecutionCreated,
    ExecutionDuplicate,
    OnParentEnd,
    Submission,
    Submitted,
)
from flowfabric.telemetry.traces import TRACEPARENT

# The creating step, for new executions.
Create = Callable[[Sequence[NewExecution]], Awaitable[list[Answered[CreateAnswer]]]]


# What many submissions share, besides their policy.
_shared_parts: Final = attrgetter(
    "namespace", "lane", "kind", "creator", "payload_encoding", "priority"
)
_MOST_COMMON: Final = 256
_ON_PARENT_END: Final = get_args(OnParentEnd)
_common_parts: Final[dict[tuple[Any, ...], NewExecution]] = {}
_COMPARED: Final = frozenset[With]({"input"})


class Executions:
    def __init__(self, deps: Deps, lanes: Lanes, options: DeclaredOptions) -> None:
        self._deps = deps
        self._lanes = lanes
        self._limits = KnownLimits(deps.store.backend)
        self.complete = options.complete

    @implements(declared.Executions.submit)
    async def create(self, new: Submission, trace: str = "") -> Submitted:
        """`trace` is the trace of the call, so that the worker can go on with it."""
        prepared = await self.prepare(new, trace)
        answer = await self._deps.store.create(prepared)
        if isinstance(answer, Duplicate):
            await self.compare(prepared, answer)
        return self.submitted(prepared, answer)

    async def create_derived(self, new: Submission) -> Submitted:
        """For keys and ids that only the engine makes: whatever has them is what was asked for."""
        prepared = await self.prepare(new)
        return self.submitted(prepared, await self._deps.store.create(prepared))

    @implements(declared.Executions.submit_many)
    async def create_many(
        self, executions: Sequence[Submission], trace: str = ""
    ) -> list[ExecutionCreated | ExecutionDuplicate | FlowFabricError]:
        prepared = [await self._prepared(one, trace) for one in executions]
        answers = await self._deps.store.create_all(prepared)
        return [*map(self._item, prepared, await self._compared(prepared, answers))]

    async def create_in_transaction(
        self, create: Create, executions: Sequence[Submission]
    ) -> list[Answered[Submitted]]:
        """`create` writes in a transaction of the caller's, which may stay open for long: whatever
        would make other submits wait for its end is refused."""
        prepared = [_transactional(await self._prepared(one, "")) for one in executions]
        news = [one for one in prepared if not isinstance(one, FlowFabricError)]
        made = iter(await create(news) if news else ())
        answers = [one if isinstance(one, FlowFabricError) else next(made) for one in prepared]
        return [*map(self._item, prepared, await self._compared(prepared, answers))]

    async def _prepared(self, asked: Submission, trace: str) -> Answered[NewExecution]:
        try:
            return await self.prepare(asked, trace)
        except FlowFabricError as fault:
            return fault

    async def _compared(
        self, news: Sequence[Answered[NewExecution]], answers: Sequence[Answered[CreateAnswer]]
    ) -> list[Answered[CreateAnswer]]:
        """The answers, but an error for each duplicate that is not what was asked for."""
        found = list(answers)
        known = [
            (at, new, answer)
            for at, (new, answer) in enumerate(zip(news, answers, strict=True))
            if isinstance(answer, Duplicate) and isinstance(new, NewExecution)
        ]
        if known:
            faults = await asyncio.gather(*(self._difference(new, one) for _, new, one in known))
            for (at, _, answer), fault in zip(known, faults, strict=True):
                found[at] = fault or answer
        return found

    def _item(
        self, new: Answered[NewExecution], answer: Answered[CreateAnswer]
    ) -> Answered[Submitted]:
        if isinstance(new, FlowFabricError):
            return new
        if isinstance(answer, FlowFabricError):
            return answer
        try:
            return self.submitted(new, answer)
        except FlowFabricError as fault:
            return fault

    async def prepare(
        self, asked: Submission, trace: str = "", *, has_input: bool = True
    ) -> NewExecution:
        """All that comes before the creating step: its checks, and the requirement set. Without
        `has_input` the input comes later, from others of the flow."""
        # Only the priority is judged before the lane, which must take work.
        if asked.priority is not None:
            integer(asked.priority, "priority")
        if asked.arguments is not None:
            asked = _with_json_input(asked)
        if not asked.typed or asked.lane == "":
            asked = await self.complete(asked, checks=has_input)
        known = self._lanes.known((asked.namespace, asked.lane))
        if known is None:
            _check_names(asked)
            lane = await self._lanes.look_up(asked.namespace, asked.lane)
        else:
            lane = known.lane
        if not accepts_submissions(lane.state):
            raise LaneNotAccepting(not_open(asked.lane, lane.state))
        new = self._new_execution(asked, lane.lane_shards)
        if new.record.required_capabilities:
            await self._lanes.register_set(new.record)
        if new.record.gated:
            await self._limits.check(new.record, asked.policy)
        return _traced(new, trace) if trace else new

    async def check(self, submission: Submission) -> None:
        """Refuse what could never be submitted; whether its lane takes work is not looked at."""
        _check_names(submission)
        new = self._new_execution(submission, shards=1)
        await self._limits.check(new.record, submission.policy)

    async def compare(self, new: NewExecution, known: Duplicate) -> None:
        """A duplicate is one only if it is what was asked for."""
        if fault := await self._difference(new, known):
            raise fault

    async def _difference(self, new: NewExecution, known: Duplicate) -> Conflict | None:
        """What a key or an id stands for instead. One that was purged cannot be compared."""
        seen = await self._deps.store.read(known.execution_id, _COMPARED)
        return None if seen is None else difference(new, seen.record, seen.input or b"")

    def submitted(self, new: NewExecution, answer: CreateAnswer) -> Submitted:
        """What the store answered the creating step with, as the caller sees it."""
        record = new.record
        match answer:
            case Created(execution_id, state, reason):
                submitted: Submitted = ExecutionCreated(execution_id, public_state(state, reason))
            case Duplicate(execution_id):
                submitted = ExecutionDuplicate(execution_id)
            case refused:
                fault = explain_create(record, refused.flow, refused.parent)
                raise fault or InvariantViolation(f"create of {new.execution_id} was refused")
        self._lanes.used(record.namespace, record.lane)
        return submitted

    def _new_execution(self, asked: Submission, shards: int) -> NewExecution:
        """Everything about the new record but its instants."""
        common = _common_of(asked)
        delay_until, deadline_at = common.delay_until, 0
        if asked.delay_until is not None:
            delay_until = _instant(asked.delay_until, "delay_until")
        record = common.record
        if asked.flow_id != "" or asked.idempotency_key != "" or asked.tags is not None:
            record = _with_own(record, asked)
        if asked.on_parent_end not in _ON_PARENT_END:
            raise InvalidInput(
                f"on_parent_end: expected cancel or leave, got {asked.on_parent_end!r}"
            )
        if asked.parent_id != "":
            record = self._with_parent(record, asked)
        execution_id = self._id(asked, record, shards)
        given = body(asked.input, "input_payload", self._deps.limits.payload_bytes)
        if asked.deadline_at is not None:
            deadline_at = _instant(asked.deadline_at, "execution_deadline_at")
        return NewExecution(
            execution_id=execution_id,
            record=record,
            input=given,
            dedup_window_ms=common.dedup_window_ms,
            delay_until=delay_until,
            deadline_at=deadline_at,
            deadline_in=common.deadline_in,
        )

    def _with_parent(self, record: Record, asked: Submission) -> Record:
        """A child lies beside its parent, so that one step sees both."""
        parent_id = parse_execution_id(asked.parent_id, self._deps.counts, "parent_id")
        if not record.flow_id:
            raise InvalidInput("parent_id: a child is a member of its parent's flow, name it")
        home, index = self._deps.counts.of_flow(record.flow_id), partition_of(parent_id)
        if home != index:
            raise PartitionMismatch(f"the flow lives in partition {home}, the parent in {index}")
        return msgspec.structs.replace(
            record,
            parent_id=parent_id,
            parent_round=whole(asked.parent_round, "parent_round"),
            on_parent_end="leave" if asked.on_parent_end == "leave" else "",
        )

    def _id(self, asked: Submission, record: Record, shards: int) -> str:
        """The id given or a new one, in the partition of its flow, its key or its lane; a caller
        that names the partition must agree with it."""
        counts = self._deps.counts
        if asked.execution_id != "":
            execution_id: str = self._given_id(asked, record)
        else:
            uuid = self._deps.mint()
            if record.flow_id:
                home = counts.of_flow(record.flow_id)
            elif record.idempotency_key:
                home = counts.of_key(record.namespace, record.idempotency_key)
            else:
                home = counts.of_lane(record.lane, uuid, shards)
            execution_id = compose(home, uuid)
        if asked.partition is not None:
            index = partition_of(execution_id)
            if whole(asked.partition, "partition_id") != index:
                raise InvalidInput(f"partition_id: the id names {index}, not {asked.partition}")
        return execution_id

    def _given_id(self, asked: Submission, record: Record) -> str:
        execution_id = parse_execution_id(asked.execution_id, self._deps.counts)
        index = partition_of(execution_id)
        if record.flow_id:
            home = self._deps.counts.of_flow(record.flow_id)
            if home != index:
                raise PartitionMismatch(f"the flow lives in partition {home}, the id in {index}")
        elif record.idempotency_key:
            home = self._deps.counts.of_key(record.namespace, record.idempotency_key)
            if home != index:
                raise InvalidInput(f"execution_id: expected partition {home}, got {index}")
        return execution_id


def _transactional(new: Answered[NewExecution]) -> Answered[NewExecution]:
    """A key, a fairness key and a flow are rows that all submits with the same one lock."""
    if isinstance(new, FlowFabricError):
        return new
    record = new.record
    if record.idempotency_key:
        return InvalidInput(
            "idempotency_key: not in a transaction of the caller's, where other submits with the"
            " key would wait for its end; use a unique column of your own table"
        )
    if record.fairness_key or record.flow_id:
        name = "fairness_key" if record.fairness_key else "flow_id"
        return InvalidInput(
            f"{name}: not in a transaction of the caller's, where other submits with the same one"
            " would wait for its end"
        )
    return new


def _traced(new: NewExecution, trace: str) -> NewExecution:
    """With the trace as a tag, which does not count towards the bounds of the caller's tags."""
    tags = {TRACEPARENT: trace, **new.record.tags}
    return msgspec.structs.replace(new, record=msgspec.structs.replace(new.record, tags=tags))


def _with_json_input(asked: Submission) -> Submission:
    text = json_input(asked.arguments, asked.input, "input_payload", asked.payload_encoding)
    if text is None:
        return asked
    return msgspec.structs.replace(asked, arguments=None, input=text, payload_encoding=JSON)


def _check_names(asked: Submission) -> None:
    check_namespace(asked.namespace)
    check_lane(asked.lane)


def _common_of(asked: Submission) -> NewExecution:
    """What the new execution has in common with others of the same lane, kind and policy."""
    parts, policy = _shared_parts(asked), asked.policy
    if policy is not None:
        policy = bytes(policy) if isinstance(policy, msgspec.Raw) else policy
        if not is_cacheable(policy):
            return _common(asked, policy)
        parts += (policy,)
    try:
        common = _common_parts.get(parts)
    except TypeError:
        # What has no hash is no text: it is refused.
        return _common(asked, policy)
    if common is None:
        common = _common(asked, policy)
        if len(_common_parts) >= _MOST_COMMON:
            _common_parts.clear()
        _common_parts[parts] = common
    return common


def _common(asked: Submission, given: RawPolicy) -> NewExecution:
    """The new execution of a submission that has nothing of its own, not even an id."""
    policy = resolved(decode_policy(given), asked.namespace)
    timeouts = policy.timeout_policy
    priority = policy.priority if asked.priority is None else asked.priority
    kind = check_text(asked.kind, "execution_kind", MAX_KIND_BYTES)
    return NewExecution(
        execution_id="",
        record=Record(
            execution_id="",
            namespace=asked.namespace,
            lane=asked.lane,
            kind=kind,
            req_set=queue_of(set_id(policy.required_capabilities), kind),
            creator=check_text(asked.creator, "creator_identity", 1024),
            payload_encoding=check_text(asked.payload_encoding, "payload_encoding", 128),
            priority=clamp_priority(priority),
            **policy_fields(policy),
        ),
        dedup_window_ms=policy.dedup_window_ms,
        delay_until=policy.delay_until or 0,
        deadline_in=(timeouts.execution_deadline_ms or 0) if timeouts else 0,
    )


def _with_own(record: Record, asked: Submission) -> Record:
    return msgspec.structs.replace(
        record,
        flow_id="" if asked.flow_id == "" else parse_uuid(asked.flow_id, "flow_id"),
        idempotency_key=check_text(asked.idempotency_key, "idempotency_key", 1024),
        tags=submitted_tags(asked.tags) if asked.tags is not None else {},
    )


def policy_fields(policy: ExecutionPolicy) -> dict[str, Any]:
    """The parts of a policy that stores and claims read off the record."""
    frozen = freeze(policy)
    if not frozen:
        return {}
    routing, timeouts = policy.routing_requirements, policy.timeout_policy
    required = routing.required_capabilities if routing else ()
    return {
        "policy": frozen,
        "required_capabilities": required,
        "budget_ids": policy.budget_ids,
        "quota_ids": policy.quota_ids,
        "concurrency_key": policy.concurrency_key or "",
        "concurrency_limit": policy.concurrency_limit,
        "fairness_key": policy.fairness_key or "",
        "gated": bool(policy.budget_ids or policy.quota_ids or policy.concurrency_key),
        "attempt_timeout_ms": (timeouts.attempt_timeout_ms or 0) if timeouts else 0,
        "max_reclaim_count": policy.reclaim_cap,
        "retention_ms": policy.kept_for_ms,
    }


def _instant(value: int, field: str) -> int:
    return max(1, whole(value, field, 0, MAX_INSTANT))
