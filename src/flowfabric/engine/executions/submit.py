"""Submitting executions."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from flowfabric.backend.base import Answered
from flowfabric.backend.types import CreateAnswer, Created, Duplicate
from flowfabric.core.capabilities import set_id
from flowfabric.core.flow_checks import explain_create
from flowfabric.core.ids import (
    check_lane,
    check_namespace,
    check_text,
    for_flow,
    keyed,
    parse_execution_id,
    parse_uuid,
    partition_of,
    solo,
)
from flowfabric.core.lanes import accepts_submissions, not_open
from flowfabric.core.new_execution import NewExecution
from flowfabric.core.policy import ExecutionPolicy, RawPolicy, decode_policy, freeze, is_cacheable
from flowfabric.core.record import Record
from flowfabric.core.rules.operators import clamp_priority
from flowfabric.core.states import public_state
from flowfabric.core.tags import submitted_tags
from flowfabric.engine.checking import MAX_INSTANT, body, integer, whole
from flowfabric.engine.deps import Deps
from flowfabric.engine.lanes import Lanes
from flowfabric.errors import (
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
    Submission,
    Submitted,
)
from flowfabric.telemetry.traces import TRACEPARENT


class _SubmissionShape(msgspec.Struct, frozen=True, gc=False):
    """The part of a submission that many others share."""

    namespace: str
    lane: str
    kind: str
    creator: str
    payload_encoding: str
    policy: RawPolicy
    # None leaves it to the policy.
    priority: int | None


class Executions:
    def __init__(self, deps: Deps, lanes: Lanes) -> None:
        self._deps = deps
        self._lanes = lanes

    @implements(declared.Executions.submit)
    async def create(self, new: Submission, trace: str = "") -> Submitted:
        """`trace` is the trace of the call, so that the worker can go on with it."""
        return await self.insert(_traced(await self.prepare(new), trace))

    async def insert(self, new: NewExecution) -> Submitted:
        """The creating step itself."""
        submitted = self._submitted(new, await self._deps.store.create(new))
        if isinstance(submitted, FlowFabricError):
            raise submitted
        return submitted

    @implements(declared.Executions.submit_many)
    async def create_many(
        self, executions: Sequence[Submission], trace: str = ""
    ) -> list[ExecutionCreated | ExecutionDuplicate | FlowFabricError]:
        prepared = [await self._prepared(one, trace) for one in executions]
        answers = await self._deps.store.create_all(prepared)
        return [
            new if isinstance(new, FlowFabricError) else self._submitted(new, answer)
            for new, answer in zip(prepared, answers, strict=True)
        ]

    async def _prepared(self, asked: Submission, trace: str) -> NewExecution | FlowFabricError:
        try:
            return _traced(await self.prepare(asked), trace)
        except FlowFabricError as fault:
            return fault

    async def prepare(self, asked: Submission) -> NewExecution:
        """All that comes before the creating step: its checks, and the requirement set."""
        # Only the priority is judged before the lane, which must take work.
        if asked.priority is not None:
            integer(asked.priority, "priority")
        lane = self._lanes.known(asked.namespace, asked.lane)
        if lane is None:
            _check_names(asked)
            lane = await self._lanes.look_up(asked.namespace, asked.lane)
        if not accepts_submissions(lane.state):
            raise LaneNotAccepting(not_open(asked.lane, lane.state))
        new = self._new_execution(asked, lane.lane_shards)
        if new.record.required_capabilities:
            await self._lanes.register_set(new.record)
        return new

    def check(self, submission: Submission) -> None:
        """Refuse what could never be submitted; whether its lane takes work is not looked at."""
        _check_names(submission)
        self._new_execution(submission, shards=1)

    def _submitted(
        self, new: NewExecution, answer: Answered[CreateAnswer]
    ) -> Submitted | FlowFabricError:
        record = new.record
        match answer:
            case FlowFabricError():
                return answer
            case Created(execution_id, state, reason):
                submitted: Submitted = ExecutionCreated(execution_id, public_state(state, reason))
            case Duplicate(execution_id):
                submitted = ExecutionDuplicate(execution_id)
            case refused:
                fault = explain_create(record, refused.flow)
                return fault or InvariantViolation(f"create of {new.execution_id} was refused")
        self._lanes.used(record.namespace, record.lane)
        return submitted

    def _new_execution(self, asked: Submission, shards: int) -> NewExecution:
        """Everything about the new record but its instants."""
        common = _common_of(asked)
        delay_until = _instant(asked.delay_until, "delay_until", common.delay_until)
        record = _with_own(common.record, asked)
        return NewExecution(
            execution_id=self._id(asked, record, shards),
            record=record,
            input=body(asked.input, "input_payload", self._deps.limits.payload_bytes),
            dedup_window_ms=common.dedup_window_ms,
            delay_until=delay_until,
            deadline_at=_instant(asked.deadline_at, "execution_deadline_at", 0),
            deadline_in=common.deadline_in,
        )

    def _id(self, asked: Submission, record: Record, shards: int) -> str:
        """The id given or a new one, whose partition a caller that names one must agree with."""
        if asked.execution_id == "":
            execution_id = self._mint_id(record, shards)
        else:
            execution_id = self._given_id(asked, record)
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

    def _mint_id(self, record: Record, shards: int) -> str:
        counts, uuid = self._deps.counts, self._deps.mint()
        if record.flow_id:
            return for_flow(counts, record.flow_id, uuid)
        if record.idempotency_key:
            return keyed(counts, record.namespace, record.idempotency_key, uuid)
        return solo(counts, record.lane, uuid, shards)


def _traced(new: NewExecution, trace: str) -> NewExecution:
    """With the trace as a tag, which does not count towards the bounds of the caller's tags."""
    if not trace:
        return new
    tags = {TRACEPARENT: trace, **new.record.tags}
    return msgspec.structs.replace(new, record=msgspec.structs.replace(new.record, tags=tags))


def _check_names(asked: Submission) -> None:
    check_namespace(asked.namespace)
    check_lane(asked.lane)


def _common_of(asked: Submission) -> NewExecution:
    policy = bytes(asked.policy) if isinstance(asked.policy, msgspec.Raw) else asked.policy
    shape = _SubmissionShape(
        asked.namespace,
        asked.lane,
        asked.kind,
        asked.creator,
        asked.payload_encoding,
        policy,
        asked.priority,
    )
    if not is_cacheable(policy):
        return _common(shape)
    try:
        return _common_once(shape)
    except TypeError:
        # What has no hash is no text: it is refused.
        return _common(shape)


def _common(asked: _SubmissionShape) -> NewExecution:
    """The new execution of a submission that has nothing of its own, not even an id."""
    policy = decode_policy(asked.policy)
    timeouts = policy.timeout_policy
    return NewExecution(
        execution_id="",
        record=Record(
            execution_id="",
            namespace=asked.namespace,
            lane=asked.lane,
            kind=check_text(asked.kind, "execution_kind", 1024),
            creator=check_text(asked.creator, "creator_identity", 1024),
            payload_encoding=check_text(asked.payload_encoding, "payload_encoding", 128),
            priority=clamp_priority(policy.priority if asked.priority is None else asked.priority),
            **policy_fields(policy),
        ),
        dedup_window_ms=policy.dedup_window_ms,
        delay_until=policy.delay_until or 0,
        deadline_in=(timeouts.execution_deadline_ms or 0) if timeouts else 0,
    )


_common_once: Final = lru_cache(maxsize=256)(_common)


def _with_own(record: Record, asked: Submission) -> Record:
    if asked.flow_id == "" and asked.idempotency_key == "" and asked.tags is None:
        return record
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
        "req_set": set_id(required),
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


def _instant(value: int | None, field: str, fallback: int) -> int:
    return fallback if value is None else max(1, whole(value, field, 0, MAX_INSTANT))
