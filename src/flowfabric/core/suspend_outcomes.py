"""What a suspend answers, and how the answer is remembered under its idempotency key."""

from typing import Final, Literal

import msgspec

from flowfabric.core.conditions import Satisfier
from flowfabric.core.documents import Document, Redacted
from flowfabric.core.handles import Backend, Handle
from flowfabric.core.suspensions import ReceivedSignal, Suspension, Waitpoint
from flowfabric.core.tokens import WaitpointToken, token_from_text, token_to_text

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

    @property
    def waitpoint_id(self) -> str:
        return self.waitpoints[0].waitpoint_id

    @property
    def waitpoint_key(self) -> str:
        return self.waitpoints[0].waitpoint_key

    @property
    def waitpoint_token(self) -> WaitpointToken:
        return self.waitpoints[0].waitpoint_token

    @property
    def additional_waitpoints(self) -> tuple[Issued, ...]:
        return self.waitpoints[1:]


class Suspended(msgspec.Struct, frozen=True):
    """The lease is given up; with the handle only signals can be read."""

    details: Details
    handle: Handle


class Satisfied(msgspec.Struct, frozen=True):
    """The condition was met before the pause began: the lease is kept, the work goes on."""

    details: Details
    signals: tuple[ReceivedSignal, ...]


Outcome = Suspended | Satisfied


class GivenUp(Redacted, frozen=True, kw_only=True):
    """The lease a suspend ended, as far as a handle knows it; the same in every store."""

    hidden = Handle.hidden

    attempt_index: int
    attempt_id: str
    lease_id: str
    lease_epoch: int
    lease_ttl_ms: int
    lane_id: str
    worker_instance_id: str

    def handle(self, execution_id: str, backend: Backend) -> Handle:
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return Handle(execution_id=execution_id, backend=backend, kind="suspended", **fields)


class StoredOutcome(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An outcome as stored. Signals stay as long as the execution, so their ids suffice."""

    variant: Literal["Suspended", "AlreadySatisfied"]
    details: Details
    lease: GivenUp | None = None
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


def given_up(handle: Handle) -> GivenUp:
    return GivenUp(**{name: getattr(handle, name) for name in GivenUp.__struct_fields__})


write_outcome: Final = msgspec.json.Encoder(enc_hook=token_to_text).encode
_decode: Final = msgspec.json.Decoder(StoredOutcome, dec_hook=token_from_text).decode


def read_outcome(document: Document | None, now: int) -> StoredOutcome | None:
    """The remembered outcome; None when there is none (any more), or none that can be read."""
    if document is None:
        return None
    try:
        stored = _decode(document.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, NotImplementedError):
        return None
    return stored if stored.ends_at(document.last_at) > now else None


def issued(waitpoint: Waitpoint) -> Issued:
    token = waitpoint.token or WaitpointToken("")
    return Issued(waitpoint.waitpoint_id, waitpoint.waitpoint_key, token)


def details_of(suspension: Suspension, waitpoints: tuple[Waitpoint, ...]) -> Details:
    return Details(suspension.suspension_id, tuple(issued(one) for one in waitpoints))
