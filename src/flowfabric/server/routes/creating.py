"""Submitting executions, one or many."""

from typing import Final

import msgspec

from flowfabric.engine.executions import Submission, Submitted
from flowfabric.errors import (
    FlowAlreadyTerminal,
    FlowFabricError,
    FlowNotFound,
    InvalidCapabilities,
    InvalidInput,
    InvalidPolicyJson,
    LaneNotAccepting,
    PartitionMismatch,
)
from flowfabric.server.call import Call
from flowfabric.server.replies import Reply, created, ok
from flowfabric.server.route import SUBMIT_OR_WORKER, Routes
from flowfabric.telemetry.traces import TRACEPARENT
from flowfabric.wire.errors import Item, item_of
from flowfabric.wire.executions import (
    CreateAnswer,
    CreateAnswers,
    Created,
    CreateExecution,
    CreateExecutions,
    Duplicate,
)
from flowfabric.wire.scalars import to_bytes

routes: Final = Routes()

_REFUSALS: Final = (
    LaneNotAccepting,
    FlowAlreadyTerminal,
    FlowNotFound,
    PartitionMismatch,
    InvalidInput,
    InvalidPolicyJson,
    InvalidCapabilities,
)


@routes.add(
    "POST /v1/executions",
    SUBMIT_OR_WORKER,
    {201: CreateAnswer, 200: CreateAnswer},
    *_REFUSALS,
    body_class="large",
)
async def create_execution(call: Call[CreateExecution, None]) -> Reply:
    """Submit an execution; a repeat under the same idempotency key answers the first one's id."""
    answer = _answer(await call.engine.executions.create(_submission(call, call.body)))
    return ok(answer) if answer.created is None else created(answer)


@routes.add("POST /v1/executions:batch", SUBMIT_OR_WORKER, {200: CreateAnswers}, body_class="batch")
async def create_executions(call: Call[CreateExecutions, None]) -> Reply:
    """Submit up to 200 executions, each with its own answer."""
    asked = [_permitted(call, one) for one in call.body.executions]
    answers = await call.engine.executions.create_many(asked)
    return ok(CreateAnswers(items=[_item(answer) for answer in answers]))


def _permitted(
    call: Call[CreateExecutions, None], asked: CreateExecution
) -> Submission | FlowFabricError:
    try:
        return _submission(call, asked)
    except FlowFabricError as fault:
        return fault


def _submission(
    call: Call[CreateExecution, None] | Call[CreateExecutions, None], asked: CreateExecution
) -> Submission:
    call.caller.need_namespace(asked.namespace)
    policy = asked.policy
    return Submission(
        kind=asked.execution_kind,
        namespace=asked.namespace,
        lane=asked.lane_id,
        input=to_bytes(asked.input_payload),
        payload_encoding=asked.payload_encoding,
        priority=asked.priority,
        creator=asked.creator_identity,
        execution_id=asked.execution_id or "",
        flow_id=asked.flow_id or "",
        idempotency_key=asked.idempotency_key,
        tags=_tags(call, asked),
        policy=None if isinstance(policy, msgspec.UnsetType) else bytes(policy),
        delay_until=asked.delay_until,
        deadline_at=asked.execution_deadline_at,
        partition=asked.partition_id,
    )


def _item(done: Submitted | FlowFabricError) -> Item[CreateAnswer]:
    return item_of(done) if isinstance(done, FlowFabricError) else Item(ok=_answer(done))


def _answer(done: Submitted) -> CreateAnswer:
    if done.is_new:
        new = Created(execution_id=done.execution_id, public_state=done.public_state)
        return CreateAnswer(created=new)
    return CreateAnswer(duplicate=Duplicate(execution_id=done.execution_id))


def _tags(
    call: Call[CreateExecution, None] | Call[CreateExecutions, None], asked: CreateExecution
) -> dict[str, str] | None:
    """The tags given, and the trace of the call, so that the worker can go on with it."""
    trace = call.traceparent
    return {TRACEPARENT: trace, **(asked.tags or {})} if trace else asked.tags
