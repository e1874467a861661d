"""What a suspend may ask for, checked before a store is asked."""

from collections.abc import Callable
from typing import Final

import msgspec

from flowfabric.core.condition_checks import (
    Asked,
    Binding,
    Fresh,
    UsePending,
    check_suspend,
    check_waitpoints,
)
from flowfabric.core.conditions import Condition, first_key
from flowfabric.core.ids import check_text, parse_uuid
from flowfabric.core.rules.signals import BEHAVIOR_ALIASES, TIMEOUT_BEHAVIORS
from flowfabric.core.suspensions import Bound, ResumePolicy, Suspension
from flowfabric.engine.checking import whole
from flowfabric.errors import AdditionalWaitpointBindingMalformed, InvalidInput
from flowfabric.operations.attempts import SuspendOrder

MAX_KEY_BYTES: Final = 1_024
_LONGEST_MS: Final = 2**52
REQUESTERS: Final = ("worker", "operator", "policy", "system_timeout_policy")


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """A checked order: the suspension but for what the record says, and its waitpoints."""

    suspension: Suspension
    bindings: tuple[Binding, ...]
    op: str
    # Looked up before; remembered under one of the two.
    chosen_key: str
    key: str
    attempt_index: int | None
    children: tuple[str, ...] = ()

    @property
    def is_pending(self) -> bool:
        return isinstance(self.bindings[0], UsePending)


def ready_of(order: SuspendOrder, mint: Callable[[], str], now: int) -> Ready:
    """The order as it can be carried out; what does not hang together is refused first."""
    if not isinstance(order.resume_condition, Condition):
        raise InvalidInput("resume_condition: expected a Condition")
    check_waitpoints(order.waitpoints or ())
    timeout_at, timeout_ms = _timeout(order)
    bindings = _named(order, mint)
    asked = Asked(
        waitpoints=bindings,
        condition=order.resume_condition,
        has_timeout=timeout_at is not None or timeout_ms is not None,
        timeout_at=timeout_at,
    )
    check_suspend(asked, now)
    suspension_id = order.suspension_id or mint()
    op = check_text(order.op, "op", 64)
    return Ready(
        suspension=_suspension(order, bindings, parse_uuid(suspension_id, "suspension_id")),
        bindings=bindings,
        op=op or f"suspend:{suspension_id}",
        chosen_key=check_text(order.idempotency_key, "idempotency_key", 1024),
        key=order.idempotency_key or op,
        attempt_index=order.attempt_index,
        children=tuple(order.children),
    )


def check_extras(bindings: tuple[Binding, ...]) -> None:
    """Whether the further waitpoints can be stored; asked late, after who holds the lease."""
    for extra in bindings[1:]:
        try:
            parse_uuid(extra.waitpoint_id, "waitpoint_id")
            if isinstance(extra, Fresh):
                check_text(extra.waitpoint_key, "waitpoint_key", MAX_KEY_BYTES)
        except InvalidInput as fault:
            raise AdditionalWaitpointBindingMalformed(fault.detail) from fault


def _timeout(order: SuspendOrder) -> tuple[int | None, int | None]:
    at, length = order.timeout_at, order.timeout_ms
    if at is not None and length is not None:
        raise InvalidInput("timeout: give either timeout_at or timeout_ms")
    if at is not None:
        at = whole(at, "timeout_at")
    if length is not None:
        length = whole(length, "timeout_ms", 0, _LONGEST_MS)
    return at, length


def _named(order: SuspendOrder, mint: Callable[[], str]) -> tuple[Binding, ...]:
    """The waitpoints with ids, and the primary one with a key."""
    given = (Fresh(),) if order.waitpoints is None else tuple(order.waitpoints)
    bindings = [
        msgspec.structs.replace(one, waitpoint_id=mint())
        if isinstance(one, Fresh) and not one.waitpoint_id
        else one
        for one in given
    ]
    if bindings and isinstance(bindings[0], Fresh) and not bindings[0].waitpoint_key:
        key = first_key(order.resume_condition) or f"wpk:{bindings[0].waitpoint_id}"
        bindings[0] = Fresh(bindings[0].waitpoint_id, key)
    return tuple(bindings)


def _suspension(
    order: SuspendOrder, bindings: tuple[Binding, ...], suspension_id: str
) -> Suspension:
    primary = bindings[0]
    extras = (one for one in bindings[1:] if isinstance(one, Fresh))
    key = primary.waitpoint_key if isinstance(primary, Fresh) else ""
    pointer = order.continuation_metadata_pointer
    return Suspension(
        suspension_id=suspension_id,
        attempt_index=0,
        waitpoint_id=parse_uuid(primary.waitpoint_id, "waitpoint_id"),
        waitpoint_key=check_text(key, "waitpoint_key", MAX_KEY_BYTES),
        additional_waitpoints=tuple(Bound(one.waitpoint_id, one.waitpoint_key) for one in extras),
        reason_code=check_text(order.reason_code, "reason_code", 128, allow_empty=False),
        requested_by=_requester(order.requested_by),
        timeout_at=0 if order.timeout_at is None else max(1, order.timeout_at),
        timeout_in=order.timeout_ms,
        timeout_behavior=_behavior(order.timeout_behavior),
        resume_condition=order.resume_condition,
        resume_policy=_policy(order.resume_policy),
        mailbox=_mailbox(order),
        continuation_metadata_pointer=check_text(pointer, "continuation_metadata_pointer", 4096),
    )


def _mailbox(order: SuspendOrder) -> bool:
    """Whoever waits on a waitpoint handed out before waits for its own signals only."""
    waits_elsewhere = any(isinstance(one, UsePending) for one in order.waitpoints or ())
    if order.mailbox and waits_elsewhere:
        raise InvalidInput("mailbox: a pending waitpoint takes signals by its token only")
    return order.mailbox


def _requester(value: str) -> str:
    if value not in REQUESTERS:
        raise InvalidInput(f"requested_by: expected one of {', '.join(REQUESTERS)}")
    return value


def _behavior(value: str) -> str:
    behavior = BEHAVIOR_ALIASES.get(value, value)
    if behavior and behavior not in TIMEOUT_BEHAVIORS:
        raise InvalidInput(f"timeout_behavior: expected one of {', '.join(TIMEOUT_BEHAVIORS)}")
    return behavior


def _policy(policy: ResumePolicy) -> ResumePolicy:
    if not isinstance(policy, ResumePolicy) or policy.resume_target != "runnable":
        raise InvalidInput("resume_policy: expected a ResumePolicy with the target runnable")
    if policy.resume_delay_ms is not None:
        whole(policy.resume_delay_ms, "resume_policy.resume_delay_ms", 0, _LONGEST_MS)
    return policy
