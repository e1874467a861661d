"""Submitting executions."""

from collections.abc import Mapping
from typing import Any

import msgspec

from flowfabric.backend.types import CreateAnswer, Created, Duplicate
from flowfabric.core.birth import Birth
from flowfabric.core.capabilities import set_id
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
from flowfabric.core.policy import ExecutionPolicy, decode_policy, freeze
from flowfabric.core.record import Record
from flowfabric.core.rules.operators import clamp_priority
from flowfabric.core.states import public_state
from flowfabric.core.tags import submitted_tags
from flowfabric.engine.checking import MAX_INSTANT, body, integer, whole
from flowfabric.engine.deps import Deps
from flowfabric.engine.lanes import Lane, Lanes
from flowfabric.errors import (
    FlowAlreadyTerminal,
    FlowNotFound,
    InvalidInput,
    LaneNotAccepting,
    PartitionMismatch,
)


class Submission(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a caller asks to be run. Values are checked when it is submitted."""

    kind: str = ""
    namespace: str = "default"
    lane: str = "default"
    input: bytes = b""
    payload_encoding: str = ""
    # None leaves it to the policy.
    priority: int | None = None
    creator: str = ""
    execution_id: str = ""
    flow_id: str = ""
    idempotency_key: str = ""
    tags: Mapping[str, object] | None = None
    policy: bytes | str | Mapping[str, object] | None = None
    delay_until: int | None = None
    deadline_at: int | None = None
    partition: int | None = None


class Submitted(msgspec.Struct, frozen=True, gc=False):
    execution_id: str
    public_state: str
    is_new: bool


class Executions:
    def __init__(self, deps: Deps, lanes: Lanes) -> None:
        self._deps = deps
        self._lanes = lanes

    async def create(self, submission: Submission) -> Submitted:
        birth = await self.prepare(submission)
        record = birth.record
        submitted = _answered(await self._deps.store.create(birth), record)
        self._lanes.used(record.namespace, record.lane)
        return submitted

    async def prepare(self, submission: Submission) -> Birth:
        """All that comes before the creating step: its checks, and the requirement set."""
        lane = await self._open_lane(submission)
        birth = self._birth(submission, lane.lane_shards)
        if birth.record.required_capabilities:
            await self._lanes.register_set(birth.record)
        return birth

    def check(self, submission: Submission) -> None:
        """Refuse what could never be submitted; whether its lane takes work is not looked at."""
        check_namespace(submission.namespace)
        check_lane(submission.lane)
        self._birth(submission, shards=1)

    async def _open_lane(self, asked: Submission) -> Lane:
        """The lane the work is for, which must take some. Only the priority is judged before."""
        if asked.priority is not None:
            integer(asked.priority, "priority")
        namespace, name = check_namespace(asked.namespace), check_lane(asked.lane)
        lane = self._lanes.known(namespace, name) or await self._lanes.look_up(namespace, name)
        if lane.state in ("draining", "disabled"):
            raise LaneNotAccepting(f"lane {name} is {lane.state}")
        return lane

    def _birth(self, asked: Submission, shards: int) -> Birth:
        """Everything about the new record but its instants."""
        policy = decode_policy(asked.policy)
        delay_until = _instant(asked.delay_until, "delay_until", policy.delay_until)
        priority = policy.priority if asked.priority is None else asked.priority
        record = Record(
            execution_id="" if asked.execution_id == "" else self._given_id(asked),
            namespace=asked.namespace,
            lane=asked.lane,
            kind=check_text(asked.kind, "execution_kind", 1024),
            creator=check_text(asked.creator, "creator_identity", 1024),
            flow_id="" if asked.flow_id == "" else parse_uuid(asked.flow_id, "flow_id"),
            idempotency_key=_key(asked.idempotency_key),
            payload_encoding=check_text(asked.payload_encoding, "payload_encoding", 128),
            tags=submitted_tags(asked.tags) if asked.tags is not None else {},
            priority=clamp_priority(priority),
            **policy_fields(policy),
        )
        timeouts = policy.timeout_policy
        return Birth(
            record=self._placed(record, asked.partition, shards),
            input=body(asked.input, "input_payload", self._deps.limits.payload_bytes),
            dedup_window_ms=policy.dedup_window_ms,
            delay_until=delay_until,
            deadline_at=_instant(asked.deadline_at, "execution_deadline_at", None),
            deadline_in=(timeouts.execution_deadline_ms or 0) if timeouts else 0,
        )

    def _given_id(self, asked: Submission) -> str:
        execution_id = parse_execution_id(asked.execution_id, self._deps.counts)
        index = partition_of(execution_id)
        if asked.flow_id:
            home = self._deps.counts.of_flow(parse_uuid(asked.flow_id, "flow_id"))
            if home != index:
                raise PartitionMismatch(f"the flow lives in partition {home}, the id in {index}")
        elif asked.idempotency_key:
            home = self._deps.counts.of_key(asked.namespace, _key(asked.idempotency_key))
            if home != index:
                raise InvalidInput(f"execution_id: expected partition {home}, got {index}")
        return execution_id

    def _placed(self, record: Record, partition: object, shards: int) -> Record:
        """The record with its id, whose partition a caller that names one must agree with."""
        if not record.execution_id:
            minted = self._mint_id(record, shards)
            record = msgspec.structs.replace(record, execution_id=minted)
        index = partition_of(record.execution_id)
        if partition is not None and whole(partition, "partition_id") != index:
            raise InvalidInput(f"partition_id: the id names {index}, not {partition}")
        return record

    def _mint_id(self, record: Record, shards: int) -> str:
        counts, uuid = self._deps.counts, self._deps.mint()
        if record.flow_id:
            return for_flow(counts, record.flow_id, uuid)
        if record.idempotency_key:
            return keyed(counts, record.namespace, record.idempotency_key, uuid)
        return solo(counts, record.lane, uuid, shards)


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


def _instant(value: int | None, field: str, fallback: int | None) -> int:
    if value is None:
        return fallback or 0
    return max(1, whole(value, field, 0, MAX_INSTANT))


def _key(value: str) -> str:
    return check_text(value, "idempotency_key", 1024)


def _answered(answer: CreateAnswer, record: Record) -> Submitted:
    match answer:
        case Created(execution_id, state, reason):
            return Submitted(execution_id, public_state(state, reason), True)
        case Duplicate(execution_id):
            return Submitted(execution_id, "", False)
        case _:
            if answer.flow is None:
                raise FlowNotFound(record.flow_id)
            if answer.flow.cancelled_at:
                raise FlowAlreadyTerminal(f"flow {record.flow_id} is cancelled")
            raise InvalidInput(f"namespace: the flow is of namespace {answer.flow.namespace}")
