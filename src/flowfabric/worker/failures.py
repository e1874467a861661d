"""Failures of steps: how the journal keeps an exception, and how one is made again from it."""

import asyncio
import sys
import traceback
from collections.abc import Iterator
from types import FunctionType
from typing import Any, Final

import msgspec

from flowfabric.core.journal import FAILED, JournalEntry
from flowfabric.errors import FlowFabricError, NonRetryable, StepFailed
from flowfabric.worker import codecs

_CONTENT_BYTES: Final = 16 * 1024
_MESSAGE_BYTES: Final = 4 * 1024
_TRACE_BYTES: Final = 16 * 1024
_GROUP_DEPTH: Final = 4
_GROUP_MEMBERS: Final = 32


class FailureRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """An exception as data. `args` is None when JSON cannot hold them; `members` are those of a
    group."""

    call: str
    type: str = ""
    bases: tuple[str, ...] = ()
    args: list[Any] | None = None
    attributes: dict[str, Any] = {}
    message: str = ""
    category: str = ""
    retryable: bool | None = None
    is_cancelled: bool = False
    tries: int = 1
    frames: int = 0
    traceback: str = ""
    members: tuple["FailureRecord", ...] = ()


read_failure: Final = msgspec.json.Decoder(FailureRecord).decode
_write: Final = msgspec.json.Encoder().encode


class RecordedTraceback(Exception):
    """The cause of an exception that comes from the journal: the traceback of the first one."""

    def __str__(self) -> str:
        return f"recorded\n{self.args[0]}"


class KeptFailure:
    """A failure that the handler may catch. It counts once the handler goes on with something."""

    __slots__ = ("entry", "fault", "step", "went_on")

    def __init__(self, fault: BaseException, step: str, entry: JournalEntry | None = None) -> None:
        self.fault = fault
        # As `name#use`.
        self.step = step
        # None when an earlier entry of the handler recorded it.
        self.entry = entry
        # The name of the first effect behind it.
        self.went_on = ""


class Failures:
    """The failures of one entry of a handler, in the order of failing."""

    def __init__(self, unsaved: list[JournalEntry]) -> None:
        """`unsaved`: what the journal is to hold before the next effect begins."""
        self._unsaved = unsaved
        self._kept: list[KeptFailure] = []

    def keep(self, name: str, seq: int, digest: str, record: FailureRecord) -> BaseException:
        """Remember a failure that just happened; returns what the handler catches."""
        fault = rebuilt(record)
        entry = JournalEntry(FAILED + name, seq, digest, _write(record))
        self._unsaved.append(entry)
        self._kept.append(KeptFailure(fault, f"{name}#{seq}", entry))
        return fault

    def met(self, record: FailureRecord, step: str) -> BaseException:
        """The exception of a recorded failure, to be raised again."""
        fault = rebuilt(record)
        if record.traceback:
            fault.__cause__ = RecordedTraceback(record.traceback)
        self._kept.append(KeptFailure(fault, step))
        return fault

    def go_on(self, name: str) -> None:
        """The handler calls something else after its failures."""
        for one in self._kept:
            one.went_on = one.went_on or name

    def recorded_in(self, fault: BaseException) -> KeptFailure | None:
        """The recorded failure that an exception is, or that it was raised from."""
        saved = {id(one.fault): one for one in self._kept if one.entry not in self._unsaved}
        return next((saved[id(one)] for one in _chain(fault) if id(one) in saved), None)


def _chain(fault: BaseException) -> Iterator[BaseException]:
    """An exception, its causes and the members of its groups."""
    waiting, seen = [fault], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
        if one.__cause__ is not None:
            waiting.append(one.__cause__)


def retryable_of(fault: BaseException) -> bool | None:
    """Whether the exception itself says that another try can help; None when it says nothing."""
    if isinstance(fault, NonRetryable):
        return False
    if isinstance(fault, FlowFabricError):
        retryable = fault.details.get("retryable") if isinstance(fault, StepFailed) else None
    else:
        retryable = getattr(fault, "retryable", None)
    return retryable if isinstance(retryable, bool) else None


# ---- an exception as data


def cancelled_record(call: str, frames: int) -> FailureRecord:
    """The handler itself cancelled the call."""
    return FailureRecord(call, is_cancelled=True, frames=frames)


def record_of(fault: Exception, call: str, tries: int = 1, frames: int = 0) -> FailureRecord:
    trace = "".join(traceback.format_exception(fault)).encode("utf-8", "replace")
    return msgspec.structs.replace(
        _plain_record(fault),
        call=call,
        tries=tries,
        frames=frames,
        traceback=trace[-_TRACE_BYTES:].decode("utf-8", "ignore"),
    )


def _plain_record(fault: Exception) -> FailureRecord:
    category = getattr(fault, "category", None)
    args, attributes = _content(fault)
    members: tuple[Exception, ...] = ()
    if isinstance(fault, ExceptionGroup) and _is_small(fault):
        members = fault.exceptions
    return FailureRecord(
        call="",
        type=_name(type(fault)),
        bases=tuple(_name(one) for one in type(fault).__mro__[1:] if issubclass(one, Exception)),
        args=args,
        attributes=attributes,
        message=_text(fault),
        category=category if isinstance(category, str) else "",
        retryable=retryable_of(fault),
        members=tuple(map(_plain_record, members)),
    )


def _is_small(group: ExceptionGroup[Any], depth: int = 1) -> bool:
    return (
        depth <= _GROUP_DEPTH
        and _size(group) <= _GROUP_MEMBERS
        and all(
            _is_small(one, depth + 1) for one in group.exceptions if isinstance(one, ExceptionGroup)
        )
    )


def _size(group: ExceptionGroup[Any]) -> int:
    return sum(
        1 + (_size(one) if isinstance(one, ExceptionGroup) else 0) for one in group.exceptions
    )


def _name(type_: type) -> str:
    return f"{type_.__module__}:{type_.__qualname__}"


def _text(fault: Exception) -> str:
    try:
        text = fault.message if isinstance(fault, ExceptionGroup) else str(fault)
    except Exception:
        # Its message cannot be built; its class is known.
        text = type(fault).__name__
    return text.encode("utf-8", "replace")[:_MESSAGE_BYTES].decode("utf-8", "ignore")


def _content(fault: Exception) -> tuple[list[Any] | None, dict[str, Any]]:
    """Arguments and attributes, as far as JSON keeps them as they are."""
    if isinstance(fault, ExceptionGroup):
        return None, {}
    args = _given(fault)
    attributes = {
        name: value
        for name, value in vars(fault).items()
        if not name.startswith("__") and _survives(value)
    }
    if _encoded_size((args, attributes)) > _CONTENT_BYTES:
        return None, {}
    return args, attributes


def _given(fault: Exception) -> list[Any] | None:
    """What the class is called with to make an equal exception."""
    args: Any = fault.args
    if _is_built_in(type(fault)):
        args = fault.__reduce__()[1]
    return list(args) if isinstance(args, tuple) and all(map(_survives, args)) else None


def _survives(value: object) -> bool:
    try:
        return bool(codecs.from_json(codecs.to_json(value)) == value)
    except (codecs.Unencodable, codecs.Undecodable):
        return False


def _encoded_size(content: object) -> int:
    return len(codecs.to_json(content))


# ---- data as an exception


def rebuilt(record: FailureRecord) -> BaseException:
    """An exception equal to the recorded one; always made from the record, so that the first time
    and every later one are the same."""
    if record.is_cancelled:
        return asyncio.CancelledError()
    return _rebuilt(record)


def _rebuilt(record: FailureRecord) -> Exception:
    try:
        fault = _group(record) if record.members else _same_class(record)
    except Exception:
        # The class cannot be made from what is known.
        fault = None
    return fault or _stand_in(record)


def _group(record: FailureRecord) -> Exception | None:
    cls = _loaded(record.type)
    if cls is None or not issubclass(cls, ExceptionGroup) or not _is_built_in(cls):
        return None
    return cls(record.message, [_rebuilt(one) for one in record.members])


def _same_class(record: FailureRecord) -> Exception | None:
    cls = _loaded(record.type)
    if cls is None or record.args is None:
        return None
    if _is_built_in(cls):
        fault = cls(*record.args)
    elif isinstance(cls.__new__, FunctionType):
        return None
    else:
        fault = cls.__new__(cls, *record.args)
        fault.args = tuple(record.args)
    vars(fault).update(record.attributes)
    return fault if _text(fault) == record.message else None


def _loaded(name: str) -> type[Exception] | None:
    """The exception class of that name, if its module is loaded. Nothing is imported, and no
    attribute is asked for that could import something."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    is_class = isinstance(found, type) and issubclass(found, Exception)
    return found if is_class and _name(found) == name else None


def _is_built_in(cls: type[BaseException]) -> bool:
    """Whether making one runs no Python code of the class."""
    return not any(
        isinstance(getattr(cls, name), FunctionType)
        for name in ("__init__", "__new__", "__reduce__")
    )


def _stand_in(record: FailureRecord) -> StepFailed:
    names = (record.type, *record.bases)
    found = (cls for cls in map(_loaded, names) if cls is not None and _takes(cls, record.message))
    kind = record.type.partition(":")[2]
    return _mixed(next(found, StepFailed))(
        f"{kind}: {record.message}",
        type=kind,
        message=record.message,
        category=record.category,
        retryable=record.retryable,
    )


def _takes(cls: type[Exception], message: str) -> bool:
    if cls is Exception or not _is_built_in(cls) or issubclass(cls, BaseExceptionGroup):
        return False
    try:
        cls(message)
        _mixed(cls)
    except TypeError:
        return False
    return True


_MIXED: Final[dict[type[Exception], type[StepFailed]]] = {StepFailed: StepFailed}


def _mixed(cls: type[Exception]) -> type[StepFailed]:
    """`StepFailed` that is caught as the given class too."""
    if cls not in _MIXED:
        _MIXED[cls] = type("StepFailed", (StepFailed, cls), {"__module__": __name__})
    return _MIXED[cls]
