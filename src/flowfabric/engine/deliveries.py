"""The way of one signal to its execution: who is let in, what it repeats, what it does there."""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from flowfabric.backend.types import Seen
from flowfabric.core.documents import (
    SUSPENSION,
    signal_key_name,
    signal_name,
    waitpoint_name,
)
from flowfabric.core.plan import Plan
from flowfabric.core.rules.operators import note
from flowfabric.core.rules.signals import Target, Terms, deliver, repeat
from flowfabric.core.suspension_documents import known_signal
from flowfabric.core.suspensions import Signal, Waitpoint
from flowfabric.engine.deciding import decide_with_documents
from flowfabric.engine.deps import Deps
from flowfabric.errors import FlowFabricError, InvalidToken, MissingToken, TokenExpired
from flowfabric.operations.signals import Delivered

# Every write of a record makes decisions under way lose; bad tokens may cause one a second.
_NOTED_EVERY_MS: Final = 1_000


class Delivery(msgspec.Struct, frozen=True):
    """A signal on its way. `admit` finds its waitpoint, or refuses the sender."""

    signal: Signal
    terms: Terms
    admit: Callable[[Seen], Waitpoint]

    async def deliver_to(self, deps: Deps, execution_id: str) -> Delivered:
        """Those for one execution are decided one after the other."""
        names = tuple(self._names())
        _, outcome = await decide_with_documents(deps, execution_id, names, self._decide)
        if isinstance(outcome, FlowFabricError):
            raise outcome
        return outcome

    def _names(self) -> Iterator[str]:
        """The documents it is decided from."""
        own, key = self.signal.waitpoint_id, self.signal.idempotency_key
        yield SUSPENSION
        yield waitpoint_name(own)
        yield signal_name(own, self.signal.signal_id)
        if key and self.terms.dedup_ttl_ms:
            yield signal_key_name(own, key)

    def _decide(self, seen: Seen) -> tuple[Plan | None, Delivered | FlowFabricError]:
        try:
            waitpoint = self.admit(seen)
        except (MissingToken, InvalidToken, TokenExpired) as fault:
            return _noted(seen), fault
        known = self._known(seen)
        if known:
            return repeat(seen.record, self.signal, known)
        target = Target(seen.record, seen.now, waitpoint, seen.documents)
        return deliver(target, self.signal, self.terms)

    def _known(self, seen: Seen) -> str:
        """The signal this one repeats, by its key or by its id."""
        own, key = self.signal.waitpoint_id, self.signal.idempotency_key
        found = ""
        if key and self.terms.dedup_ttl_ms:
            found = known_signal(seen.documents.get(signal_key_name(own, key)), seen.now)
        if found or signal_name(own, self.signal.signal_id) not in seen.documents:
            return found
        return self.signal.signal_id


def _noted(seen: Seen) -> Plan | None:
    """Remember that a token failed, unless that was remembered just now."""
    since = seen.now - seen.record.last_hmac_validation_failed_at
    if since < _NOTED_EVERY_MS:
        return None
    return note(seen.record.execution_id, "last_hmac_validation_failed_at")
