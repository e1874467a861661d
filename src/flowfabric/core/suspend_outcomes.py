"""What a suspend answers, and how the answer is remembered under its idempotency key."""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from flowfabric.core.conditions import Satisfier
from flowfabric.core.documents import Document
from flowfabric.core.handles import Handle, HeldLease
from flowfabric.core.suspensions import ReceivedSignal, Suspension, Waitpoint, signed_of
from flowfabric.core.tokens import KeyRing, TokenDigest, WaitpointToken, minted_again

_LONGEST_MS: Final = 604_800_000
_AFTER_TIMEOUT_MS: Final = 60_000


class Issued(msgspec.Struct, frozen=True):
    """A waitpoint with the token to hand out."""

    waitpoint_id: str
    waitpoint_key: str
    waitpoint_token: WaitpointToken


class Details(msgspec.Struct, frozen=True):
    """The suspension and its waitpoints, the primary one first."""

    suspension_id: str
    waitpoints: tuple[Issued, ...]


class Suspended(msgspec.Struct, frozen=True):
    """The lease is given up; with the handle only signals can be read."""

    details: Details
    handle: Handle


class Satisfied(msgspec.Struct, frozen=True):
    """The condition was met before the pause began: the lease is kept, the work goes on."""

    details: Details
    signals: tuple[ReceivedSignal, ...]


Outcome = Suspended | Satisfied


class KeptWaitpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A waitpoint of a stored outcome, with what its token is computed again from."""

    waitpoint_id: str
    waitpoint_key: str
    created_at: int = 0
    token: TokenDigest | None = None


class StoredOutcome(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An outcome as stored. Signals stay as long as the execution, so their ids suffice."""

    variant: Literal["Suspended", "AlreadySatisfied"]
    suspension_id: str
    waitpoints: tuple[KeptWaitpoint, ...]
    # That the suspend gave up.
    lease: HeldLease | None = None
    satisfiers: tuple[Satisfier, ...] = ()
    timeout_at: int = 0
    timeout_in: int | None = None

    def ends_at(self, stored_at: int) -> int:
        """Until when it is remembered: a minute past the timeout, a week at most."""
        longest = stored_at + _LONGEST_MS
        timeout_at = self.timeout_at
        if self.timeout_in is not None:
            timeout_at = stored_at + self.timeout_in
        if not timeout_at:
            return longest
        return min(max(timeout_at, stored_at) + _AFTER_TIMEOUT_MS, longest)


def given_up(handle: Handle) -> HeldLease:
    return HeldLease(**{name: getattr(handle, name) for name in HeldLease.__struct_fields__})


write_outcome: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(StoredOutcome).decode


def read_outcome(document: Document | None, now: int) -> StoredOutcome | None:
    """The remembered outcome; None when there is none (any more), or none that can be read."""
    if document is None:
        return None
    try:
        stored = _decode(document.body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return stored if stored.ends_at(document.last_at) > now else None


_UNKNOWN: Final = WaitpointToken("")

# The tokens of waitpoints by their ids.
Tokens = Mapping[str, WaitpointToken]


def kept(waitpoint: Waitpoint) -> KeptWaitpoint:
    fields = (getattr(waitpoint, name) for name in KeptWaitpoint.__struct_fields__)
    return KeptWaitpoint(*fields)


def issued(waitpoint: Waitpoint, tokens: Tokens) -> Issued:
    token = tokens.get(waitpoint.waitpoint_id, _UNKNOWN)
    return Issued(waitpoint.waitpoint_id, waitpoint.waitpoint_key, token)


def issued_again(ring: KeyRing, execution_id: str, waitpoint: Waitpoint | KeptWaitpoint) -> Issued:
    """With an empty token when the key of the token is gone: nobody could verify it any more."""
    token = minted_again(ring, waitpoint.token, signed_of(execution_id, waitpoint))
    return Issued(waitpoint.waitpoint_id, waitpoint.waitpoint_key, token or _UNKNOWN)


def details_of(suspension: Suspension, waitpoints: Iterable[Waitpoint], tokens: Tokens) -> Details:
    own = tuple(issued(one, tokens) for one in waitpoints)
    return Details(suspension.suspension_id, own)
