"""Waitpoints by themselves: handed out before a suspend, closed, listed, and their tokens read."""

import logging
from typing import Final, Literal

from flowfabric.backend.types import Seen
from flowfabric.core.checks import check_lease
from flowfabric.core.conditions import required_names
from flowfabric.core.documents import SUSPENSION, WAITPOINTS, waitpoint_name
from flowfabric.core.ids import check_text, parse_execution_id, parse_uuid
from flowfabric.core.pages import fitting
from flowfabric.core.plan import Plan
from flowfabric.core.rules.operators import at_version
from flowfabric.core.rules.suspensions import (
    check_unused,
    close,
    closed,
    create_pending,
    holders_guard,
    is_closed,
)
from flowfabric.core.suspend_outcomes import Issued, issued_again
from flowfabric.core.suspensions import (
    Suspension,
    Waitpoint,
    signed_of,
    suspension_in,
    waitpoint_in,
    waitpoint_state,
    waitpoints_in,
)
from flowfabric.core.tokens import Signed, WaitpointToken, digest_of, mint, minted_again
from flowfabric.engine.audit import audit
from flowfabric.engine.checking import whole
from flowfabric.engine.deciding import decide_with_documents
from flowfabric.engine.deps import Deps
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.engine.suspensions.keys import Keys
from flowfabric.errors import NotFound, StaleLease
from flowfabric.operations import attempts
from flowfabric.operations.attempts import NewWaitpoint, WaitpointIssued
from flowfabric.operations.declaration import implements
from flowfabric.operations.signals import OpenWaitpoint, Signals, TokenOfWaitpoint
from flowfabric.operations.types import Page

_log = logging.getLogger("flowfabric.waitpoints")

MOST_LISTED: Final = 1_000
MAX_KEY_BYTES: Final = 1_024
_LONGEST_MS: Final = 2**63 - 1

Closed = Literal["closed", "already_closed"]


class Waitpoints:
    def __init__(self, deps: Deps, keys: Keys) -> None:
        self._deps = deps
        self._keys = keys

    @implements(attempts.HeldAttempts.create_waitpoint)
    async def create_waitpoint(self, new: NewWaitpoint) -> WaitpointIssued:
        proof, own = self._deps.leases.proof(new), new.waitpoint_id
        made = await self._created_before(proof, own) if own else None
        if made is None:
            made = await self.create_pending_waitpoint(
                proof, new.expires_in_ms, new.waitpoint_key, own
            )
        return WaitpointIssued(made.waitpoint_id, made.waitpoint_key, made.waitpoint_token)

    async def _created_before(self, proof: LeaseProof, waitpoint_id: str) -> Issued | None:
        """The waitpoint of an earlier call, open or not; its token is computed again."""
        name = waitpoint_name(parse_uuid(waitpoint_id, "waitpoint_id"))
        fence = await self._deps.fence_of(proof, may_override=False)
        seen = await self._deps.seen(proof.execution_id, documents=(name,))
        check_lease(seen.record, fence, seen.now)
        found = waitpoint_in(seen.documents, waitpoint_id)
        if found is None or found.token is None:
            return None
        return issued_again(await self._keys.ring_for(found.token.kid), proof.execution_id, found)

    async def create_pending_waitpoint(
        self,
        proof: LeaseProof,
        expires_in_ms: int,
        waitpoint_key: str = "",
        waitpoint_id: str = "",
        attempt_index: int | None = None,
    ) -> Issued:
        """An address and token for signals that may come before the suspend that waits for them.
        An id and a key that are not given are made."""
        whole(expires_in_ms, "expires_in_ms", 1, _LONGEST_MS)
        waitpoint_id = parse_uuid(waitpoint_id or self._deps.mint(), "waitpoint_id")
        key = check_text(waitpoint_key, "waitpoint_key", MAX_KEY_BYTES) or f"wpk:{waitpoint_id}"
        fence = await self._deps.fence_of(proof, may_override=False)
        ring, signed_at = await self._keys.ring(), await self._deps.store.now()
        own, name = proof.execution_id, waitpoint_name(waitpoint_id)

        def decision(seen: Seen) -> tuple[Plan, Issued]:
            record = seen.record
            check_lease(record, fence, seen.now)
            if attempt_index not in (None, record.attempt_index):
                raise StaleLease(f"attempt_index {attempt_index} is not the current one")
            check_unused(record, waitpoint_in(seen.documents, waitpoint_id), seen.now)
            token = mint(ring, Signed(own, waitpoint_id, signed_at, key))
            fresh = Waitpoint(
                waitpoint_id=waitpoint_id,
                waitpoint_key=key,
                attempt_index=record.attempt_index,
                token=digest_of(token),
                state="pending",
                created_at=signed_at,
                expires_in=expires_in_ms,
            )
            return create_pending(record, fence, fresh, seen.now), Issued(waitpoint_id, key, token)

        _, made = await decide_with_documents(self._deps, own, (name,), decision)
        return made

    async def close_waitpoint(
        self,
        execution_id: str,
        waitpoint_id: str,
        reason: str = "proactive_close",
        proof: LeaseProof | None = None,
    ) -> Closed:
        """Take no more signals there. A holder closes what it does not need, an operator any."""
        parse_uuid(waitpoint_id, "waitpoint_id")
        check_text(reason, "reason", 256)
        fence = None if proof is None else await self._deps.fence_of(proof, may_override=False)

        def decision(seen: Seen) -> tuple[Plan | None, Closed]:
            record = seen.record
            if fence is not None:
                check_lease(record, fence, seen.now)
            found = waitpoint_in(seen.documents, waitpoint_id)
            if is_closed(record, found, waitpoint_id, seen.now):
                return None, "already_closed"
            assert found is not None
            guard = holders_guard(record, fence) if fence else at_version(record)
            others = waitpoints_in(seen.documents)
            return close(record, guard, closed(found, reason), others), "closed"

        _, done = await decide_with_documents(self._deps, execution_id, (WAITPOINTS,), decision)
        return done

    @implements(Signals.list_pending_waitpoints)
    async def list_pending_waitpoints(
        self, execution_id: str, after: str = "", limit: int = 100
    ) -> Page[OpenWaitpoint]:
        """Waitpoints that take signals now, by id."""
        parse_execution_id(execution_id, self._deps.counts)
        whole(limit, "limit", 1, MOST_LISTED)
        if after:
            parse_uuid(after, "after")
        seen = await self._deps.seen(execution_id, documents=(SUSPENSION, WAITPOINTS))
        suspension = suspension_in(seen.documents)
        open_ones = [
            open_waitpoint
            for one in waitpoints_in(seen.documents)
            if one.waitpoint_id > after
            and (open_waitpoint := _open_waitpoint(seen, one, suspension))
        ]
        page = fitting(open_ones[:limit])
        more = len(open_ones) > len(page)
        return Page(items=page, next_cursor=page[-1].waitpoint_id if more else "")

    @implements(Signals.waitpoint_token)
    async def waitpoint_token(self, execution_id: str, waitpoint_id: str) -> TokenOfWaitpoint:
        token = await self.read_waitpoint_token(execution_id, waitpoint_id)
        if token is None:
            raise NotFound("waitpoint token not found (consumed, expired, or unknown id)")
        return TokenOfWaitpoint(token)

    async def read_waitpoint_token(
        self, execution_id: str, waitpoint_id: str
    ) -> WaitpointToken | None:
        """The token of an open waitpoint, for operators; every reading leaves a trace. None once
        its key is gone, which is long after the token stopped being valid."""
        parse_execution_id(execution_id, self._deps.counts)
        parse_uuid(waitpoint_id, "waitpoint_id")
        name = waitpoint_name(waitpoint_id)
        seen = await self._deps.store.read(execution_id, documents=(name,))
        found = waitpoint_in(seen.documents, waitpoint_id) if seen else None
        if seen is None or found is None or found.token is None:
            return None
        if waitpoint_state(seen.record, found, seen.now) == "closed":
            return None
        ring = await self._keys.ring_for(found.token.kid)
        token = minted_again(ring, found.token, signed_of(execution_id, found))
        if token is not None:
            audit("waitpoint_token_read", execution_id=execution_id, waitpoint_id=waitpoint_id)
        return token


def _open_waitpoint(
    seen: Seen, one: Waitpoint, suspension: Suspension | None
) -> OpenWaitpoint | None:
    """The waitpoint without its secret; None when it is closed."""
    state = waitpoint_state(seen.record, one, seen.now)
    if state == "closed":
        return None
    if one.token is None:
        _log.warning("waitpoint %s has no token and is left out", one.waitpoint_id)
        return None
    expires_at, names = one.expires_at, tuple[str, ...]()
    if state == "active" and suspension is not None:
        expires_at = suspension.timeout_at
        names = required_names(suspension.resume_condition, one.waitpoint_key)
    return OpenWaitpoint(
        execution_id=seen.record.execution_id,
        waitpoint_id=one.waitpoint_id,
        waitpoint_key=one.waitpoint_key,
        state=state,
        required_signal_names=names,
        created_at=one.created_at,
        activated_at=one.activated_at,
        expires_at=expires_at,
        token_kid=one.token.kid,
        token_fingerprint=one.token.fingerprint,
    )
