"""What a worker reports, as a server wants it, and what becomes of it."""

from collections.abc import Sequence
from typing import TypeVar, assert_never

import msgspec

from flowfabric.core.condition_checks import Fresh, UsePending
from flowfabric.operations.attempts import NewFrame
from flowfabric.operations.attempts import Kept
from flowfabric.errors import FlowFabricError, MalformedResponse, Nondeterminism
from flowfabric.operations.answers import Item
from flowfabric.operations.errors import error_of
from flowfabric.ports.worker import (
    Cancel,
    Complete,
    Delay,
    Fail,
    Finish,
    Finished,
    Outcome,
    WaitChildren,
)
from flowfabric.wire import workers as wire
from flowfabric.wire.errors import RawItem

T = TypeVar("T")


def size_of(finish: Finish) -> int:
    return len(getattr(finish.outcome, "result", None) or b"")


def outcome_of(item: Item[T]) -> T | FlowFabricError:
    if item.error is not None:
        return error_of(item.error)
    if item.ok is None:
        raise MalformedResponse("an item of a batch has neither an outcome nor an error")
    return item.ok


def raw_outcome_of(item: RawItem) -> msgspec.Raw | FlowFabricError:
    if item.error is not None:
        return error_of(item.error)
    if isinstance(item.ok, msgspec.UnsetType):
        raise MalformedResponse("an item of a batch has neither an outcome nor an error")
    return item.ok


def raised(items: Sequence[T | FlowFabricError]) -> T:
    """The outcome of a batch of one."""
    if len(items) != 1:
        raise MalformedResponse(f"asked one thing, got {len(items)} answers")
    (outcome,) = items
    if isinstance(outcome, FlowFabricError):
        raise outcome
    return outcome


def kept_of(item: Item[wire.Kept], given: bytes) -> Kept | Nondeterminism:
    outcome = outcome_of(item)
    if isinstance(outcome, Nondeterminism):
        return outcome
    if isinstance(outcome, FlowFabricError):
        raise outcome
    return Kept(outcome.stored, given if outcome.stored else outcome.outcome or b"")


def op_of(finish: Finish) -> str:
    """Under one lease an attempt ends only once, so the kind of its end is name enough."""
    return finish.op or type(finish.outcome).__name__.lower()


def told(outcome: Outcome) -> wire.Outcome:
    match outcome:
        case Complete(result, encoding):
            return wire.Outcome(complete=wire.Complete(result=result, encoding=encoding))
        case Fail(reason, category, retryable):
            failure = wire.Fail(reason=reason, category=category, retryable=retryable)
            return wire.Outcome(fail=failure)
        case Cancel(reason):
            return wire.Outcome(cancel=wire.CancelOwn(reason=reason))
        case Delay(until, for_ms):
            return wire.Outcome(delay=wire.Delay(until=until, for_ms=for_ms))
        case WaitChildren(children):
            return wire.Outcome(wait_children=wire.WaitChildren(children=children))
        case never:
            assert_never(never)


def finished_of(done: wire.Finished) -> Finished:
    return Finished(
        state=done.state,
        delay_until=done.delay_until or 0,
        next_attempt_index=done.next_attempt_index or 0,
        replayed=done.replayed,
    )


def binding_of(binding: Fresh | UsePending) -> wire.Binding:
    if isinstance(binding, UsePending):
        return wire.Binding(pending=wire.PendingWaitpoint(waitpoint_id=binding.waitpoint_id))
    fresh = wire.FreshWaitpoint(
        waitpoint_id=binding.waitpoint_id or None, waitpoint_key=binding.waitpoint_key
    )
    return wire.Binding(fresh=fresh)


def frame_of(frame: NewFrame) -> wire.NewFrame:
    return wire.NewFrame(**{name: getattr(frame, name) for name in wire.NewFrame.__struct_fields__})
