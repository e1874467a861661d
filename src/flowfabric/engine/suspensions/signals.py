"""Signals: admitted by a token or an operator, delivered, and read by the resumed attempt."""

from collections.abc import Callable, Iterator
from typing import Final

from flowfabric.backend.types import Seen
from flowfabric.core.conditions import Satisfier
from flowfabric.core.documents import (
    SUSPENSION,
    signal_key_name,
    signal_name,
    waitpoint_name,
)
from flowfabric.core.ids import check_text, parse_execution_id, parse_uuid
from flowfabric.core.plan import Plan
from flowfabric.core.rules.operators import note
from flowfabric.core.rules.signals import Target, Terms, deliver, repeat
from flowfabric.core.suspensions import (
    NOW,
    ReceivedSignal,
    Signal,
    Waitpoint,
    how_ended,
    known_signal,
    read_signal,
    received,
    satisfiers_of,
    signed_of,
    stored_at,
    suspension_in,
    waitpoint_in,
)
from flowfabric.core.tokens import WaitpointToken, check_token
from flowfabric.engine.audit import audit
from flowfabric.engine.checking import body, stored, whole
from flowfabric.engine.deciding import decide_with_documents
from flowfabric.engine.deps import Deps
from flowfabric.engine.suspensions.keys import Keys
from flowfabric.errors import (
    FlowFabricError,
    InvalidInput,
    InvalidToken,
    MissingToken,
    NoWaitpointToApprove,
    TokenExpired,
)
from flowfabric.operations import signals
from flowfabric.operations.declaration import implements
from flowfabric.operations.execution_queries import ExecutionQueries, ResumeSignals
from flowfabric.operations.signals import DAY_MS, Approval, Delivered, NewSignal

MOST_PAYLOAD_BYTES: Final = 65_536
RESERVED_PREFIX: Final = "__"
_LONGEST_MS: Final = 2**52
_SCOPES: Final = ("waitpoint", "execution")
# A write makes concurrent decisions on its record conflict: bad tokens cause one a second at most.
_FAILURE_NOTED_EVERY_MS: Final = 1_000

# A plan, if something is to be written, and the answer or refusal.
_Decided = tuple[Plan | None, Delivered | FlowFabricError]


class Signals:
    def __init__(self, deps: Deps, keys: Keys) -> None:
        self._deps = deps
        self._keys = keys

    @implements(signals.Signals.signal)
    async def signal(self, execution_id: str, new: NewSignal) -> Delivered:
        """Accept a signal whose token opens its waitpoint."""
        parse_execution_id(execution_id, self._deps.counts)
        signal, terms = _signal(new), _terms(new)
        token = new.waitpoint_token
        if not isinstance(token, WaitpointToken):
            raise InvalidInput("waitpoint_token: expected a WaitpointToken")
        ring = await self._keys.ring_for(token.kid)

        def decision(seen: Seen) -> _Decided:
            found = waitpoint_in(seen.documents, signal.waitpoint_id)
            signed = signed_of(execution_id, found) if found else None
            try:
                check_token(ring, token, signed, seen.now)
            except (MissingToken, InvalidToken, TokenExpired) as fault:
                return _failure_noted(seen), fault
            assert found is not None
            return _decide(seen, found, signal, terms)

        return await self._deliver(execution_id, signal, terms, decision)

    @implements(signals.Signals.approve)
    async def approve(self, execution_id: str, waitpoint_id: str, decision: Approval) -> Delivered:
        return await self.deliver_approval_signal(execution_id, waitpoint_id, decision)

    async def deliver_approval_signal(
        self,
        execution_id: str,
        waitpoint_id: str,
        decision: Approval,
        *,
        lane_id: str = "",
        signal_dedup_ttl_ms: int = DAY_MS,
        max_signals_per_execution: int | None = None,
    ) -> Delivered:
        """Deliver a person's decision. Who may call this is the authorisation; no key is asked."""
        parse_execution_id(execution_id, self._deps.counts)
        signal = _approval(decision, waitpoint_id, self._deps.mint())
        remembered_ms = whole(signal_dedup_ttl_ms, "signal_dedup_ttl_ms", 0, _LONGEST_MS)
        terms = Terms(remembered_ms, None, _limit(max_signals_per_execution))

        def decide(seen: Seen) -> _Decided:
            found = waitpoint_in(seen.documents, waitpoint_id)
            if found is None or found.token is None:
                raise NoWaitpointToApprove(f"no waitpoint {waitpoint_id} to approve")
            if lane_id and lane_id != seen.record.lane:
                raise InvalidInput(f"lane_mismatch: the execution is on lane {seen.record.lane}")
            return _decide(seen, found, signal, terms)

        delivered = await self._deliver(execution_id, signal, terms, decide)
        audit(
            "approval_delivered",
            execution_id=execution_id,
            waitpoint_id=waitpoint_id,
            signal_name=decision.signal_name,
            source_identity=decision.source_identity,
        )
        return delivered

    async def _deliver(
        self,
        execution_id: str,
        signal: Signal,
        terms: Terms,
        decision: Callable[[Seen], _Decided],
    ) -> Delivered:
        names = tuple(_documents_for(signal, terms))
        _, outcome = await decide_with_documents(self._deps, execution_id, names, decision)
        if isinstance(outcome, FlowFabricError):
            raise outcome
        return outcome

    @implements(ExecutionQueries.resume_signals)
    async def resume_signals(
        self, execution_id: str, attempt_index: int | None = None
    ) -> ResumeSignals:
        """What ended the last suspension, if it was this attempt's or no attempt is named; to be
        asked before the next suspend."""
        parse_execution_id(execution_id, self._deps.counts)
        if attempt_index is not None:
            whole(attempt_index, "attempt_index")
        seen = await self._deps.seen(execution_id, documents=(SUSPENSION,))
        suspension = suspension_in(seen.documents)
        if suspension is None or attempt_index not in (None, suspension.attempt_index):
            return ResumeSignals(signals=())
        signals = await self.signals_at(execution_id, satisfiers_of(suspension))
        how = how_ended(suspension)
        own = suspension.suspension_id if how else ""
        return ResumeSignals(resumed_by=how, signals=signals, suspension_id=own)

    async def signals_at(
        self, execution_id: str, places: tuple[Satisfier, ...]
    ) -> tuple[ReceivedSignal, ...]:
        """The stored signals at these places; ones that are gone are left out."""
        if not places:
            return ()
        for place in places:
            if place.waitpoint_id:
                stored("suspension: satisfiers", parse_uuid, place.waitpoint_id, "waitpoint_id")
        names = [stored_at(place) for place in places]
        seen = await self._deps.seen(execution_id, documents=names)
        found = (seen.documents.get(name) for name in names)
        return tuple(received(read_signal(document)) for document in found if document)


def _documents_for(signal: Signal, terms: Terms) -> Iterator[str]:
    """The documents that the delivery of a signal is decided from."""
    own, key = signal.waitpoint_id, signal.idempotency_key
    yield SUSPENSION
    yield waitpoint_name(own)
    yield signal_name(own, signal.signal_id)
    if key and terms.dedup_ttl_ms:
        yield signal_key_name(own, key)


def _decide(seen: Seen, waitpoint: Waitpoint, signal: Signal, terms: Terms) -> _Decided:
    """Deliver a signal whose sender was admitted, unless it repeats another."""
    known = _repeated(seen, signal, terms)
    if known:
        return repeat(seen.record, signal, known)
    return deliver(Target(seen.record, seen.now, waitpoint, seen.documents), signal, terms)


def _repeated(seen: Seen, signal: Signal, terms: Terms) -> str:
    """The signal that this one repeats, by its key or by its id; "" when it is new."""
    own, key = signal.waitpoint_id, signal.idempotency_key
    found = ""
    if key and terms.dedup_ttl_ms:
        found = known_signal(seen.documents.get(signal_key_name(own, key)), seen.now)
    if found or signal_name(own, signal.signal_id) not in seen.documents:
        return found
    return signal.signal_id


def _failure_noted(seen: Seen) -> Plan | None:
    """Remember that a token failed, unless that was remembered just now."""
    since = seen.now - seen.record.last_hmac_validation_failed_at
    if since < _FAILURE_NOTED_EVERY_MS:
        return None
    return note(seen.record.execution_id, "last_hmac_validation_failed_at")


def _signal(request: NewSignal) -> Signal:
    """The signal as it will be stored, if everything about it is in order."""
    if request.target_scope not in _SCOPES:
        raise InvalidInput(f"target_scope: expected one of {', '.join(_SCOPES)}")
    created_at = NOW if request.created_at is None else whole(request.created_at, "created_at")
    return Signal(
        signal_id=parse_uuid(request.signal_id, "signal_id"),
        waitpoint_id=parse_uuid(request.waitpoint_id, "waitpoint_id"),
        target_scope=request.target_scope,
        signal_name=check_signal_name(request.signal_name),
        signal_category=check_text(request.signal_category, "signal_category", 256),
        source_type=check_text(request.source_type, "source_type", 256),
        source_identity=check_text(request.source_identity, "source_identity", 1024),
        correlation_id=check_text(request.correlation_id, "correlation_id", 1024),
        idempotency_key=check_text(request.idempotency_key, "idempotency_key", 1024),
        created_at=created_at,
        payload=_payload(request.payload),
        payload_encoding=check_text(request.payload_encoding, "payload_encoding", 128),
    )


def _approval(request: Approval, waitpoint_id: str, signal_id: str) -> Signal:
    """One person's decision counts once per waitpoint: the key says who decided what."""
    who = check_text(request.source_identity, "source_identity", 1024, allow_empty=False)
    given = check_text(request.idempotency_key, "idempotency_key", 1024)
    name = check_signal_name(request.signal_name)
    return Signal(
        signal_id=signal_id,
        waitpoint_id=parse_uuid(waitpoint_id, "waitpoint_id"),
        target_scope="execution",
        signal_name=name,
        signal_category="approval",
        source_type="operator",
        source_identity=who,
        idempotency_key=f"approval:{name}:{given or who}",
        payload=_payload(request.payload),
    )


def check_signal_name(value: str) -> str:
    name = check_text(value, "signal_name", 256, allow_empty=False)
    if name.startswith(RESERVED_PREFIX):
        raise InvalidInput(f"signal_name: names that begin with {RESERVED_PREFIX} are reserved")
    return name


def _payload(value: bytes | None) -> bytes | None:
    return None if value is None else body(value, "payload", MOST_PAYLOAD_BYTES)


def _terms(request: NewSignal) -> Terms:
    delay = request.resume_delay_ms
    return Terms(
        whole(request.dedup_ttl_ms, "dedup_ttl_ms", 0, _LONGEST_MS),
        None if delay is None else whole(delay, "resume_delay_ms", 0, _LONGEST_MS),
        _limit(request.max_signals_per_execution),
    )


def _limit(value: int | None) -> int:
    return 0 if value is None else whole(value, "max_signals_per_execution")
