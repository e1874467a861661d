"""Short words for waiting: suspend on a condition, send signals, go on."""

from typing import Any, Final

import msgspec

from flowfabric.backend.types import ConfigPut
from flowfabric.core.conditions import AllOf, ByName, Condition, Count, CountKind, Single, Wildcard
from flowfabric.core.conditions import single as one_signal
from flowfabric.core.documents import SUSPENSION, Document
from flowfabric.core.rules.signals import Accepted, Duplicate
from flowfabric.core.suspend_outcomes import Details, Issued, Satisfied, Suspended
from flowfabric.core.suspensions import Signal, Suspension, read_signal, suspension_in
from flowfabric.core.tokens import WaitpointToken
from flowfabric.engine.attempts.claimed import Claimed
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.operations.attempts import SuspendOrder
from flowfabric.operations.signals import Approval
from tests.conformance.driver import Driver, stranger
from tests.moves import SignalRequest, deliver_signal

GO: Final = one_signal(matcher=ByName("go"))


def on(key: str, name: str = "go") -> Single:
    return Single(key, ByName(name) if name else Wildcard())


def count(n: int, kind: CountKind, *keys: str, name: str = "") -> Count:
    return Count(n, kind, keys, ByName(name) if name else None)


def all_of(*keys: str) -> AllOf:
    return AllOf(tuple(on(key) for key in keys))


class Paused(msgspec.Struct, frozen=True):
    """A suspension as its worker left it."""

    driver: Driver
    claimed: Claimed
    details: Details

    @property
    def execution_id(self) -> str:
        return self.claimed.execution_id

    @property
    def held(self) -> LeaseProof:
        return self.claimed.proof

    def at(self, key: str = "") -> Issued:
        """The waitpoint with this key; the primary one when none is named."""
        keyed = {one.waitpoint_key: one for one in self.details.waitpoints}
        return keyed[key] if key else self.details.waitpoints[0]

    def request(self, name: str = "go", key: str = "", **fields: Any) -> SignalRequest:
        return signal_to(self.execution_id, self.at(key), name, **fields)

    async def signal(self, name: str = "go", key: str = "", **fields: Any) -> str:
        """Send a signal that is accepted, and tell its effect."""
        sent = await self.send(name, key, **fields)
        assert isinstance(sent, Accepted)
        return sent.effect

    async def send(self, name: str = "go", key: str = "", **fields: Any) -> Accepted | Duplicate:
        return await deliver_signal(self.driver.engine, self.request(name, key, **fields))

    async def approve(self, name: str = "approved", key: str = "", **fields: Any) -> Any:
        own = fields.pop("execution_id", self.execution_id)
        at = fields.pop("waitpoint_id", self.at(key).waitpoint_id)
        asked = ("lane_id", "signal_dedup_ttl_ms", "max_signals_per_execution")
        terms = {name: fields.pop(name) for name in asked if name in fields}
        decision = Approval(**({"signal_name": name, "source_identity": "ada"} | fields))
        deliver = self.driver.engine.signals.deliver_approval_signal
        return await deliver(own, at, decision, **terms)

    async def state(self) -> str:
        return (await self.driver.record(self.execution_id)).state

    async def suspension(self) -> Suspension:
        found = suspension_in(await documents(self.driver, self.execution_id, SUSPENSION))
        assert found is not None
        return found

    async def resumed(self) -> Claimed:
        """Claim the execution that was resumed."""
        claimed = await self.driver.claim()
        assert (claimed.execution_id, claimed.kind) == (self.execution_id, "resumed")
        return claimed


def signal_to(execution_id: str, at: Issued, name: str = "go", /, **fields: Any) -> SignalRequest:
    usual: dict[str, Any] = {
        "execution_id": execution_id,
        "waitpoint_id": at.waitpoint_id,
        "signal_id": stranger(),
        "signal_name": name,
        "signal_category": "test",
        "source_type": "external",
        "source_identity": "grace",
        "waitpoint_token": at.waitpoint_token,
    }
    return SignalRequest(**(usual | fields))


def order(condition: Condition = GO, **fields: Any) -> SuspendOrder:
    return SuspendOrder(resume_condition=condition, **fields)


async def pause(driver: Driver, condition: Condition = GO, **fields: Any) -> Paused:
    """A fresh execution, claimed and suspended."""
    submitted = fields.pop("submit", {})
    return await pause_claimed(driver, await driver.started(**submitted), condition, **fields)


async def pause_claimed(
    driver: Driver, claimed: Claimed, condition: Condition = GO, **fields: Any
) -> Paused:
    outcome = await driver.engine.suspensions.suspend(claimed.proof, order(condition, **fields))
    return Paused(driver, claimed, outcome.details)


async def try_suspend(
    driver: Driver, held: LeaseProof, condition: Condition = GO, **fields: Any
) -> Suspended | Satisfied:
    return await driver.engine.suspensions.try_suspend(held, order(condition, **fields))


async def pending(
    driver: Driver, held: LeaseProof, expires_in_ms: int = 60_000, **fields: Any
) -> Issued:
    """A waitpoint handed out before anybody waits at it."""
    create = driver.engine.waitpoints.create_pending_waitpoint
    return await create(held, expires_in_ms, **fields)


async def documents(driver: Driver, execution_id: str, *names: str) -> dict[str, Document]:
    seen = await driver.engine.deps.store.read(execution_id, documents=names or ("*",))
    assert seen is not None
    return seen.documents


async def signals(driver: Driver, execution_id: str) -> list[Signal]:
    """Every signal the execution holds, in order of acceptance."""
    found = await documents(driver, execution_id, "sig/*")
    return sorted((read_signal(one) for one in found.values()), key=lambda one: one.seq)


async def drop_ring(driver: Driver) -> None:
    """Leave the store without any signing key."""
    backend = driver.engine.deps.store.backend
    (stored,) = await backend.config_get(["keys"])
    assert stored is not None
    await backend.config_put([ConfigPut("keys", stored.version, b"{}")])


def tampered(token: WaitpointToken) -> WaitpointToken:
    raw = token.reveal()
    return WaitpointToken(raw[:-1] + ("0" if raw[-1] != "0" else "1"))
