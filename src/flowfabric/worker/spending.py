"""Spending from a handler: report what was used, or hold it first."""

from collections.abc import Mapping
from types import TracebackType
from uuid import NAMESPACE_URL, UUID, uuid5

from flowfabric.engine.budget_types import Usage
from flowfabric.errors import BudgetExceeded, ConfigError
from flowfabric.ports.worker import Hold, SpendReport
from flowfabric.worker.durations import Duration, milliseconds
from flowfabric.worker.session import Address, Paused, Session, again
from flowfabric.worker.steps import describe, recorded, value_of


def limit_id(namespace: str, name: str) -> str:
    """The id of a budget or quota that goes by a name in its namespace; an id is itself."""
    try:
        return str(UUID(name))
    except ValueError:
        return str(uuid5(NAMESPACE_URL, f"{namespace}:{name}"))


class Spending:
    def __init__(self, session: Session) -> None:
        self._session = session

    async def spend(self, budget: str | None, amounts: Mapping[str, int]) -> Usage:
        session, budget_id = self._session, self._budget(budget)
        at = session.address("ff.spend")
        shown, digest = describe("spend", (budget_id,), {})
        found = session.recorded(at, digest, shown)
        if found is None:
            report = SpendReport(budget_id, _checked(amounts), self._key(at))
            usage = await session.held(again(lambda: session.port.spend(session.claim, report)))
            if usage.attempt_failed:
                session.lose()
                raise Paused
            found = await session.record(at, digest, recorded(shown, usage))
        return _judged(value_of(found, Usage))

    def reserve(
        self, budget: str | None, ttl: Duration, amounts: Mapping[str, int]
    ) -> "Reservation":
        at = self._session.address("ff.reserve")
        hold = Hold(
            self._budget(budget), self._key(at), _checked(amounts), milliseconds(ttl, "ttl")
        )
        return Reservation(self._session, hold, at)

    def _budget(self, budget: str | None) -> str:
        if budget is not None:
            return limit_id(self._session.claim.namespace, budget)
        attached = self._session.policy.budget_ids
        if len(attached) != 1:
            raise ConfigError(f"budget: name one; {len(attached)} are attached to this execution")
        return attached[0]

    def _key(self, at: Address) -> str:
        claim = self._session.claim
        return f"{claim.execution_id}/{claim.replay_count}/{at.name}/{at.seq}"


class Reservation:
    """Amounts set aside for as long as the block lasts, or until they are committed."""

    def __init__(self, session: Session, hold: Hold, at: Address) -> None:
        self._session = session
        self._hold = hold
        self._at = at
        self._shown, self._digest = describe("reserve", (hold.budget_id,), {})
        self._committed: Usage | None = None

    async def __aenter__(self) -> "Reservation":
        session, hold = self._session, self._hold
        found = session.recorded(self._at, self._digest, self._shown)
        if found is not None:
            self._committed = value_of(found, Usage)
            return self
        answer = await session.held(again(lambda: session.port.reserve(session.claim, hold)))
        if isinstance(answer, Usage):
            _judged(answer)
        return self

    async def commit(self, **amounts: int) -> Usage:
        """Count what was really spent; what was set aside beyond it is free again."""
        if self._committed is None:
            session, hold = self._session, self._hold
            used = await session.held(
                again(
                    lambda: session.port.commit(
                        hold.budget_id, hold.reservation_id, _checked(amounts)
                    )
                )
            )
            found = await session.record(self._at, self._digest, recorded(self._shown, used))
            self._committed = value_of(found, Usage)
        return _judged(self._committed)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A pause keeps the hold: the block is entered again and goes on.
        if self._committed is None and not isinstance(fault, Paused):
            await self._session.port.release(self._hold.budget_id, self._hold.reservation_id)


def _checked(amounts: Mapping[str, int]) -> Mapping[str, int]:
    if not amounts:
        raise ConfigError("amounts: expected at least one, such as tokens=120")
    for name, amount in amounts.items():
        if type(amount) is not int or amount < 0:
            raise ConfigError(f"{name}: expected a whole number of 0 or more, got {amount!r}")
    return amounts


def _judged(usage: Usage) -> Usage:
    if usage.outcome == "hard_breach":
        raise BudgetExceeded(
            f"{usage.dimension}: {usage.current_usage} of {usage.limit} used",
            budget_id=usage.budget_id,
            dimension=usage.dimension,
            current_usage=usage.current_usage,
            limit=usage.limit,
        )
    return usage
