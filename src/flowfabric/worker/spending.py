"""Spending from a handler: report what was used, or reserve it first."""

from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from flowfabric.core.ids import limit_id
from flowfabric.errors import BudgetExceeded, ConfigError
from flowfabric.operations.answers import Answers, encode
from flowfabric.operations.attempts import UsageReport
from flowfabric.operations.budgets import HardBreach, NewReservation, Usage
from flowfabric.worker.calls import fence_of, spend
from flowfabric.worker.durations import Duration, milliseconds
from flowfabric.worker.session import JournalKey, Paused, Recorded, Session
from flowfabric.worker.steps import describe, journaled, kept_failures, recorded

T = TypeVar("T")

_USAGE: Final = Answers[Usage](Usage)


class Spending:
    def __init__(self, session: Session) -> None:
        self._session = session

    async def spend(self, budget: str | None, amounts: Mapping[str, int]) -> Usage:
        session, budget_id = self._session, self._budget(budget)

        async def report_usage(key: JournalKey) -> msgspec.Raw:
            report = UsageReport(
                **fence_of(session.claim),
                budget_id=budget_id,
                dimensions=dict(_checked(amounts)),
                dedup_key=self._dedup_key(key),
            )
            usage = await session.call(lambda: spend(session.calls, report))
            if usage.attempt_failed:
                session.lose()
                raise Paused
            return msgspec.Raw(encode(_judged(usage)))

        found = await journaled(session, "ff.spend", "spend", (budget_id,), report_usage)
        return _usage_in(found)

    def reserve(
        self, budget: str | None, ttl: Duration, amounts: Mapping[str, int]
    ) -> "Reservation":
        key = self._session.next_key("ff.reserve")
        new = NewReservation(
            reservation_id=self._dedup_key(key),
            dimensions=_checked(amounts),
            ttl_ms=milliseconds(ttl, "ttl"),
            execution_id=self._session.claim.execution_id,
        )
        return Reservation(self._session, self._budget(budget), new, key)

    def _budget(self, budget: str | None) -> str:
        if budget is not None:
            return limit_id(self._session.claim.namespace, budget)
        attached = self._session.policy.budget_ids
        if len(attached) != 1:
            raise ConfigError(f"budget: name one; {len(attached)} are attached to this execution")
        return attached[0]

    def _dedup_key(self, key: JournalKey) -> str:
        claim = self._session.claim
        return f"{claim.execution_id}/{claim.round}/{key.name}/{key.seq}"


class Reservation:
    """Amounts set aside for as long as the block lasts, or until they are committed."""

    def __init__(
        self, session: Session, budget_id: str, new: NewReservation, key: JournalKey
    ) -> None:
        self._session = session
        self._calls = session.calls
        self._budget_id = budget_id
        self._new = new
        self._key = key
        self._call_text, self._digest = describe("reserve", (budget_id,))
        self._committed: Usage | None = None

    async def __aenter__(self) -> "Reservation":
        session, new = self._session, self._new
        found = session.recorded(self._key, self._digest, self._call_text)
        if found is not None:
            self._committed = _usage_in(found)
            return self
        await session.begin_effect()
        with kept_failures(session, self._key, self._digest, self._call_text):
            _judged(await session.call(lambda: self._calls.reserve(self._budget_id, new)))
        return self

    async def commit(self, **amounts: int) -> Usage:
        """Count what was really spent; what was set aside beyond it is free again."""
        if self._committed is None:
            session, name = self._session, self._new.reservation_id
            spent, commit = dict(_checked(amounts)), self._calls.commit_reservation
            used = await session.call(lambda: commit(self._budget_id, name, spent))
            outcome = recorded(self._call_text, msgspec.Raw(encode(used)))
            found = await session.record(self._key, self._digest, outcome)
            self._committed = _usage_in(found)
        return _judged(self._committed)

    async def __aexit__(self, _: object, fault: BaseException | None, __: object) -> None:
        # A pause keeps the reservation: the block is entered again and goes on.
        if self._committed is None and not isinstance(fault, Paused):
            await self._calls.cancel_reservation(self._budget_id, self._new.reservation_id)


def _checked(amounts: Mapping[str, int]) -> Mapping[str, int]:
    if not amounts:
        raise ConfigError("amounts: expected at least one, such as tokens=120")
    for name, amount in amounts.items():
        if type(amount) is not int or amount < 0:
            raise ConfigError(f"{name}: expected a whole number of 0 or more, got {amount!r}")
    return amounts


def _usage_in(found: Recorded) -> Usage:
    return _USAGE.decode(bytes(found.value))


def _judged(usage: T) -> T:
    if isinstance(usage, HardBreach):
        raise BudgetExceeded(
            f"{usage.dimension}: {usage.current_usage} of {usage.hard_limit} used",
            budget_id=usage.budget_id,
            dimension=usage.dimension,
            current_usage=usage.current_usage,
            limit=usage.hard_limit,
        )
    return usage
