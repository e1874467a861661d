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
            # A replay asks anew for what the run before it has given back.
            reservation_id=f"{self._dedup_key(key)}/{self._session.claim.replay_count}",
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
        self._commit_name = f"ff.commit {key.seq}"
        self._committed: Usage | None = None

    async def __aenter__(self) -> "Reservation":
        session, key = self._session, self._key
        text, digest = describe("reserve", (self._budget_id,))
        if session.recorded(key, digest, text) is None or self._is_replayed():
            await session.begin_effect()
            with kept_failures(session, key, digest, text):
                _judged(await session.call(lambda: self._calls.reserve(self._budget_id, self._new)))
            session.note(key, digest, recorded(text, True))
        return self

    def _is_replayed(self) -> bool:
        """Whether it was granted to an attempt that has given it back, and the execution goes on
        with what it recorded."""
        session = self._session
        is_committed = session.has_recorded(JournalKey(self._commit_name, 1))
        return session.claim.attempt_type == "replay" and not is_committed

    async def commit(self, **amounts: int) -> Usage:
        """Count what was really spent; what was set aside beyond it is free again. More than was
        set aside, or all of it if the reservation has ended, is judged like `spend`."""
        if self._committed is None:
            session, name = self._session, self._new.reservation_id
            spent, commit = dict(_checked(amounts)), self._calls.commit_reservation

            async def count(_: JournalKey) -> msgspec.Raw:
                used = await session.call(lambda: commit(self._budget_id, name, spent))
                return msgspec.Raw(encode(_judged(used)))

            # Reservations of the same handler may be committed in any order.
            found = await journaled(session, self._commit_name, "commit", (self._budget_id,), count)
            self._committed = _usage_in(found)
        return self._committed

    async def __aexit__(self, _: object, fault: BaseException | None, __: object) -> None:
        session = self._session
        # A handler that is entered again goes on with it: after a pause, a drain, a lost lease.
        is_left = isinstance(fault, Paused) or session.is_cancelled or session.is_released
        if self._committed is None and not is_left:
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
