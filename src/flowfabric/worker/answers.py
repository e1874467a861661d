"""What a handler may return besides a value, and what its exceptions mean."""

import traceback
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec

from flowfabric.core.conditions import Condition, signal_set
from flowfabric.core.policy import ExecutionPolicy
from flowfabric.core.rules.attempts import Failure
from flowfabric.errors import (
    BudgetExceeded,
    ConfigError,
    FlowFabricError,
    StepFailed,
    ValidationError,
)
from flowfabric.operations import workers
from flowfabric.operations.attempts import SuspendOrder
from flowfabric.worker import codecs
from flowfabric.worker.codecs import Undecodable, Unencodable
from flowfabric.worker.durations import Duration, milliseconds, optional_ms
from flowfabric.worker.failures import KeptFailure, RecordedTraceback, retryable_of
from flowfabric.worker.resources import MissingResource
from flowfabric.worker.session import Paused

REASON_BYTES: Final = 4096
# The category of a failure that names none.
HANDLER_ERROR: Final = "handler_error"
CATEGORY_BYTES: Final = 128
_TRACE_BYTES: Final = 60_000
_MAX_GROUP_MEMBERS: Final = 5
_WORKER: Final = str(Path(__file__).parent)


class Suspend(msgspec.Struct, frozen=True, kw_only=True):
    """Return it to wait for signals; the handler is entered again with them in `ctx.signals`."""

    names: tuple[str, ...] = ()
    condition: Condition | None = None
    timeout: Duration | None = None
    on_timeout: str = ""
    reason_code: str = "waiting_for_signal"

    def order(self) -> SuspendOrder:
        condition = self.condition or signal_set(*self.names)
        return SuspendOrder(
            resume_condition=condition,
            reason_code=self.reason_code,
            timeout_ms=optional_ms(self.timeout),
            timeout_behavior=self.on_timeout,
        )


class Delay(msgspec.Struct, frozen=True):
    """Return it to be entered again after this long, in the same attempt."""

    duration: Duration


class Fail(Failure, frozen=True):
    """Return it to fail without raising."""

    category: str = HANDLER_ERROR


Answer = workers.Ending | SuspendOrder


def answer_to(value: object) -> Answer:
    """What becomes of the attempt whose handler returned this."""
    match value:
        case None:
            return _NOTHING
        case Suspend():
            return value.order()
        case Delay(duration):
            return workers.Delay(for_ms=milliseconds(duration))
        case Fail(reason, category, retryable):
            return failed(reason, category, retryable)
    try:
        return workers.Complete(*codecs.encode(value))
    except Unencodable as fault:
        raise Unencodable(f"the result {fault}") from fault


def failure_of(fault: BaseException) -> workers.Fail:
    """How an attempt fails whose handler raised this."""
    try:
        return _failure_of(fault)
    except Exception:
        # Its message cannot be built; its class is known.
        return failed(type(fault).__name__, HANDLER_ERROR)


def _failure_of(fault: BaseException) -> workers.Fail:
    match fault:
        case Unencodable():
            return failed(str(fault), HANDLER_ERROR, False)
        case Undecodable():
            return failed(f"payload: {fault}", "extractor_payload_decode", False)
        case MissingResource():
            return failed(str(fault), "extractor_missing_state")
        case BudgetExceeded():
            return failed(message_of(fault), "budget_exceeded")
        case ConfigError():
            return failed(message_of(fault), HANDLER_ERROR, False)
        case FlowFabricError() if not isinstance(fault, StepFailed):
            return failed(message_of(fault), HANDLER_ERROR, retryable_of(fault))
        case Exception():
            category = getattr(fault, "category", None)
            return failed(
                message_of(fault),
                category if isinstance(category, str) and category else HANDLER_ERROR,
                retryable_of(fault),
            )
    return failed(f"handler panicked: {message_of(fault)}", "handler_panic")


def judged_by_class(
    failure: workers.Fail,
    fault: BaseException,
    retry_on: tuple[type[Exception], ...],
    policy: ExecutionPolicy,
) -> workers.Fail:
    """The failure of a task that says which classes are tried again: of another class only those
    whose category it names."""
    if not retry_on or failure.retryable is False or isinstance(fault, retry_on):
        return failure
    named = policy.retry_policy.retryable_categories if policy.retry_policy else ()
    is_named = failure.category != HANDLER_ERROR and failure.category in named
    return failure if is_named else msgspec.structs.replace(failure, retryable=False)


def final_if_recorded(failure: workers.Fail, kept: KeptFailure | None) -> workers.Fail:
    """A retry could only meet a recorded failure again, so none is made."""
    if kept is None:
        return failure
    why = f"the handler went on with {kept.went_on!r}" if kept.went_on else "in an earlier turn"
    final = failed(f"{failure.reason} (recorded: {why})", failure.category, False)
    return msgspec.structs.replace(final, step=kept.step)


def failed(reason: str, category: str, retryable: bool | None = None) -> workers.Fail:
    return workers.Fail(_cut(reason, REASON_BYTES), _cut(category, CATEGORY_BYTES), retryable)


def unacceptable(refusal: FlowFabricError, outcome: workers.Ending) -> workers.Fail | None:
    """The failure to report instead of a body that the engine refuses whatever happens."""
    if isinstance(refusal, ValidationError):
        if isinstance(outcome, workers.Complete):
            return failed(f"the result cannot be stored: {refusal}", HANDLER_ERROR, False)
        if isinstance(outcome, workers.Restart):
            return failed(f"the next round cannot begin: {refusal}", HANDLER_ERROR, False)
    return None


def message_of(fault: BaseException) -> str:
    """Type and message, with those of its causes: `Type: message: Type: cause`."""
    parts: list[str] = []
    seen: set[int] = set()
    link: BaseException | None = fault
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        text = _own_message(link)
        # The cause of a failure that was made again says the same.
        if not isinstance(link, RecordedTraceback) and not (parts and parts[-1].endswith(text)):
            parts.append(text)
        link = link.__cause__
    return ": ".join(parts)


def _own_message(fault: BaseException) -> str:
    """Type and message of an exception; of a group with those of its members."""
    text, kind = _text(fault), type(fault).__name__
    # What stands in for another exception begins with the type of that one.
    if not isinstance(fault, StepFailed):
        text = f"{kind}: {text}" if text else kind
    if not isinstance(fault, BaseExceptionGroup):
        return text
    texts = [message_of(one) for one in fault.exceptions[:_MAX_GROUP_MEMBERS]]
    more = ["…"] if len(fault.exceptions) > _MAX_GROUP_MEMBERS else []
    return f"{text}: {'; '.join([*texts, *more])}"


def _text(fault: BaseException) -> str:
    """An error of ours begins with its code, which says what its type says."""
    return fault.detail if isinstance(fault, FlowFabricError) else str(fault)


def trace_of(fault: BaseException) -> bytes:
    """The traceback as text; of a long one the end, which is what failed."""
    trace = _own_part(fault.__traceback__)
    lines = traceback.format_exception(type(fault), fault, trace)
    text = "".join(lines).encode("utf-8", "replace")
    return text[-_TRACE_BYTES:].decode("utf-8", "ignore").encode()


def _own_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame on that is not the worker's; all of it if none is."""
    link = trace
    while link is not None and link.tb_frame.f_code.co_filename.startswith(_WORKER):
        link = link.tb_next
    return link or trace


def pause_in(fault: BaseException) -> Paused | None:
    """The pause that ended a handler, wherever a group of tasks put it."""
    if isinstance(fault, Paused):
        return fault
    if isinstance(fault, BaseExceptionGroup):
        for one in fault.exceptions:
            found = pause_in(one)
            if found is not None:
                return found
    return None


def _cut(text: str, size: int) -> str:
    # Control characters and lone surrogates have no place in a stored reason.
    clean = text.replace("\0", " ").encode("utf-8", "replace")
    if len(clean) <= size:
        return clean.decode()
    return clean[: size - 3].decode("utf-8", "ignore") + "…"


_NOTHING: Final = workers.Complete()
