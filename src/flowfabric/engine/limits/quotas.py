"""Quota policies: how many executions may start per window, and how many may run."""

from typing import Final, Literal

import msgspec
from msgspec.structs import asdict, replace

from flowfabric.backend.optimistic import WRITE_CONFLICT, WriteConflict, decide
from flowfabric.core.ids import check_namespace, check_text, parse_execution_id, parse_uuid
from flowfabric.core.limits.asks import (
    Admission,
    Admitted,
    DefineQuota,
    GateSeen,
    LimitQuota,
    QuotaAsk,
    RateExceeded,
    Vacate,
)
from flowfabric.core.limits.gates import Quota, quota_gate
from flowfabric.engine.checking import whole
from flowfabric.engine.deps import Deps
from flowfabric.engine.limits.budgets import only
from flowfabric.engine.limits.changes import difference, tell_change
from flowfabric.engine.limits.names import LimitList, id_of_name
from flowfabric.errors import InvalidQuotaSpec, QuotaNotFound
from flowfabric.operations import budgets as declared
from flowfabric.operations.budgets import (
    LimitsChanged,
    NamedQuota,
    NewQuota,
    QuotaChange,
    QuotaCreated,
    QuotaExists,
    QuotaStatus,
)
from flowfabric.operations.declaration import implements
from flowfabric.operations.types import Page

_MOST: Final = 2**32 - 1
_LONGEST_WINDOW_S: Final = 366 * 86_400
_LONGEST_JITTER_MS: Final = 86_400_000
_LONGEST_HOLD_MS: Final = 86_400_000


class QuotaLimits(msgspec.Struct, frozen=True):
    max_requests_per_window: int
    requests_per_window_seconds: int
    active_concurrency_cap: int
    jitter_ms: int


class AdmissionCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One execution at one policy: on whose account, how long its slot lasts, and whether it
    starts (a resumed one has started before)."""

    quota_policy_id: str
    execution_id: str
    holder: str
    hold_ms: int
    rate: bool = True


class AdmissionVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict; what was obtained (`slot`, `entry`) is what a roll back returns."""

    outcome: Literal["ADMITTED", "ALREADY_ADMITTED", "RATE_EXCEEDED", "CONCURRENCY_EXCEEDED"]
    retry_after_ms: int = 0
    slot: bool = False
    entry: bool = False


class Quotas:
    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self._list = LimitList(deps.store.backend, "quota")

    @implements(declared.Budgets.create_quota)
    async def create_quota_policy(self, new: NewQuota) -> QuotaCreated | QuotaExists:
        own_id = id_of_name(new.name, new.quota_policy_id, new.namespace, "quota_policy_id")
        quota = _quota(new, own_id or self._deps.mint())
        await self._list.enter(quota.namespace, new.name, quota.quota_policy_id)
        answer = only(await self._deps.store.backend.define([DefineQuota(quota)]))
        made = QuotaCreated if answer.is_new else QuotaExists
        return made(quota_policy_id=quota.quota_policy_id)

    async def change_limits(self, changed: NewQuota) -> None:
        """Give a policy other limits. Work that waits is let in by a higher one."""
        item = LimitQuota(_quota(changed, changed.quota_policy_id))
        answer = only(await self._deps.store.backend.define([item]))
        await self._deps.slots.wake(answer.admissible)

    @implements(declared.Budgets.change_quota)
    async def change_quota(
        self, quota_policy_id: str, change: QuotaChange, *, caller: str = ""
    ) -> LimitsChanged:
        parse_uuid(quota_policy_id, "quota_policy_id")
        given = {name: one for name, one in asdict(change).items() if one is not None}

        async def attempt() -> LimitsChanged | WriteConflict:
            before = _present(await self._seen(quota_policy_id), quota_policy_id)
            after = _quota(NewQuota(**{**_limits_of(before), **given}), quota_policy_id)
            after = replace(after, namespace=before.namespace, created_at=before.created_at)
            changed = difference(_limits_of(before), _limits_of(after))
            if not changed.after:
                return changed
            answer = only(await self._deps.store.backend.define([LimitQuota(after, before)]))
            if answer.is_stale:
                return WRITE_CONFLICT
            await self._deps.slots.wake(answer.admissible)
            return changed

        changed = await decide("quota policy", quota_policy_id, attempt)
        tell_change("quota_changed", changed, quota_policy_id=quota_policy_id, caller=caller)
        return changed

    @implements(declared.Budgets.describe_quota)
    async def describe_quota(self, quota_policy_id: str) -> QuotaStatus:
        seen = await self._seen(parse_uuid(quota_policy_id, "quota_policy_id"))
        return _status(_present(seen, quota_policy_id), seen)

    @implements(declared.Budgets.list_quotas)
    async def list_quotas(
        self, namespace: str = "default", cursor: str = "", limit: int = 50
    ) -> Page[NamedQuota]:
        entries, next_cursor = await self._list.page(namespace, cursor, limit)
        names = [quota_gate(one.id) for one in entries]
        found = zip(entries, await self._deps.store.backend.gates(names), strict=True)
        return Page(
            items=[
                NamedQuota(name=one.name, quota=_status(quota, seen))
                for one, seen in found
                if (quota := _quota_in(seen)) and quota.namespace == namespace
            ],
            next_cursor=next_cursor,
        )

    async def _seen(self, quota_policy_id: str) -> GateSeen | None:
        (seen,) = await self._deps.store.backend.gates([quota_gate(quota_policy_id)])
        return seen

    async def read_quota_policy_limits(self, quota_policy_id: str) -> QuotaLimits | None:
        """The limits, None when there is no such policy."""
        quota = _quota_in(await self._seen(parse_uuid(quota_policy_id, "quota_policy_id")))
        if quota is None:
            return None
        return QuotaLimits(
            quota.max_requests_per_window,
            quota.window_seconds,
            quota.max_concurrent,
            quota.jitter_ms,
        )

    async def check_admission(self, check: AdmissionCheck) -> AdmissionVerdict:
        """Admit an execution, or say why not; asking again for the same one costs nothing."""
        item = Admission(
            execution_id=parse_execution_id(check.execution_id, self._deps.counts),
            asks=(QuotaAsk(parse_uuid(check.quota_policy_id, "quota_policy_id")),),
            holder=_holder(check.holder),
            hold_ms=whole(check.hold_ms, "hold_ms", 1, _LONGEST_HOLD_MS),
            rate=check.rate,
        )
        answer = await self._deps.store.admit(item)
        if isinstance(answer, Admitted):
            if not answer.obtained:
                return AdmissionVerdict(outcome="ALREADY_ADMITTED")
            (got,) = answer.obtained
            return AdmissionVerdict(outcome="ADMITTED", slot=got.slot, entry=got.entry)
        if isinstance(answer, RateExceeded):
            spread = min(answer.jitter_ms, int(self._deps.chance() * (answer.jitter_ms + 1)))
            wait = answer.retry_after_ms + spread
            return AdmissionVerdict(outcome="RATE_EXCEEDED", retry_after_ms=wait)
        return AdmissionVerdict(outcome="CONCURRENCY_EXCEEDED")

    async def release_admission(
        self, quota_policy_id: str, execution_id: str, holder: str, *, roll_back: bool = False
    ) -> None:
        """Give the slot back; rolling back, the window entry too. Always succeeds, and changes
        nothing when the holder no longer has them."""
        item = Vacate(
            gate=quota_gate(parse_uuid(quota_policy_id, "quota_policy_id")),
            execution_id=parse_execution_id(execution_id, self._deps.counts),
            holder=_holder(holder),
            entry=roll_back,
        )
        freed = await self._deps.store.vacate(item)
        await self._deps.slots.wake(freed.admissible)


def _quota(new: NewQuota, quota_policy_id: str) -> Quota:
    quota = Quota(
        quota_policy_id=parse_uuid(quota_policy_id, "quota_policy_id"),
        namespace=check_namespace(new.namespace),
        window_seconds=whole(new.window_seconds, "window_seconds", 0, _LONGEST_WINDOW_S),
        max_requests_per_window=whole(
            new.max_requests_per_window, "max_requests_per_window", 0, _MOST
        ),
        max_concurrent=whole(new.max_concurrent, "max_concurrent", 0, _MOST),
        jitter_ms=whole(new.jitter_ms, "jitter_ms", 0, _LONGEST_JITTER_MS),
    )
    if quota.max_requests_per_window and not quota.window_seconds:
        raise InvalidQuotaSpec("max_requests_per_window needs window_seconds")
    return quota


def _quota_in(seen: GateSeen | None) -> Quota | None:
    return None if seen is None else seen.gate.quota


def _present(seen: GateSeen | None, quota_policy_id: str) -> Quota:
    quota = _quota_in(seen)
    if quota is None:
        raise QuotaNotFound(quota_policy_id)
    return quota


def _limits_of(quota: Quota) -> dict[str, int]:
    return {name: getattr(quota, name) for name in QuotaChange.__struct_fields__}


def _status(quota: Quota, seen: GateSeen | None) -> QuotaStatus:
    return QuotaStatus(
        quota_policy_id=quota.quota_policy_id,
        namespace=quota.namespace,
        running=seen.gate.slots if seen else 0,
        started_in_window=seen.gate.entries if seen else 0,
        created_at=quota.created_at,
        **_limits_of(quota),
    )


def _holder(value: str) -> str:
    return check_text(value, "holder", 256, allow_empty=False)
