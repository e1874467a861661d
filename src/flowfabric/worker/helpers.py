"""What differs each time a program runs, made repeatable: the clock, ids, chance, logs, and which
code is in use."""

import logging
import random
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID, uuid4

from flowfabric.errors import ConfigError
from flowfabric.operations.workers import Claim
from flowfabric.worker.output import is_in_step
from flowfabric.worker.session import JournalKey, Session
from flowfabric.worker.steps import check_name, describe, recorded, value_of

T = TypeVar("T")

_log = logging.getLogger("flowfabric.task")


class Helpers:
    """Values that are made once. They are recorded before the next effect begins, so that a
    program that asks for several pays for one write."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._once("now", self._session.now, int) / 1000, UTC)

    def uuid(self) -> UUID:
        return UUID(self._once("uuid", lambda: str(uuid4()), str))

    def random(self) -> float:
        return self._once("random", random.random, float)

    def patched(self, name: str) -> bool:
        check_name(name)
        refuse_in_step("patched")
        session = self._session
        session.check()
        # One answer for all its uses.
        key = JournalKey(f"ff.patched {name}", 1)
        call, digest = describe("patched", (name,))
        found = session.recorded(key, digest, call)
        if found is None:
            found = recorded(call, not session.is_catching_up)
            session.record_later(key, digest, found)
        return bool(value_of(found, bool))

    def _once(self, name: str, make: Callable[[], T], type_: type[T]) -> T:
        refuse_in_step(name)
        session = self._session
        key = session.next_key(f"ff.{name}")
        call, digest = describe(name, ())
        found = session.recorded(key, digest, call)
        if found is None:
            found = recorded(call, make())
            session.record_later(key, digest, found)
        value: T = value_of(found, type_)
        return value


def refuse_in_step(name: str) -> None:
    """What a step asks for is not asked again once the step is recorded."""
    if is_in_step():
        raise ConfigError(f"{name}: a step runs once; ask outside of it and pass the value in")


class TaskLog(logging.LoggerAdapter[logging.Logger]):
    """Logs each line once: it is silent while the handler is on its way through what it did
    before. A step speaks, because it runs."""

    def __init__(self, session: Session) -> None:
        super().__init__(_log, fields_of(session.claim))
        self._session = session

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 (the name is logging's)
        if self._session.is_catching_up and not is_in_step():
            return False
        return super().isEnabledFor(level)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Fields of the call come beside those of the task."""
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


def fields_of(claim: Claim) -> dict[str, object]:
    """What log records of a task carry."""
    return {
        "execution_id": claim.execution_id,
        "kind": claim.execution_kind,
        "attempt_index": claim.attempt_index,
    }
