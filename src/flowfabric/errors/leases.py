"""Errors about leases and fences."""

from flowfabric.errors.base import ContentionError, StateError, ValidationError


class StaleLease(StateError):
    """Your lease, epoch or attempt has been superseded: stop, another worker owns the work."""

    code = "stale_lease"


class LeaseExpired(StateError):
    """The lease ran out before it was renewed: stop, the work is being offered again."""

    code = "lease_expired"


class LeaseRevoked(StateError):
    """The lease was taken away by an operator or the engine: stop this work."""

    code = "lease_revoked"


class ExecutionNotActive(ContentionError):
    """Nobody holds this execution any more.

    The details tell how it stands (`terminal_outcome`, `current_lease_epoch`, `lifecycle_phase`,
    `current_attempt_id`), so that a repeated call can recognise its own earlier success.
    """

    code = "execution_not_active"


class NoActiveLease(ContentionError):
    """No lease is held, so there is nothing to act on: carry on."""

    code = "no_active_lease"
    category = "informational"


class NoLeaseToRevoke(NoActiveLease):
    """A revocation found no lease; to the operator who named it, it does not exist."""

    status = 404


class FenceRequired(ValidationError):
    """The call must prove ownership: send lease id, lease epoch and attempt id."""

    code = "fence_required"


class PartialFenceTriple(ValidationError):
    """Only part of the fence was given: send all of lease id, epoch and attempt id, or none."""

    code = "partial_fence_triple"


class InvalidLeaseForSuspend(ValidationError):
    """The suspend names another attempt than the one holding the lease."""

    code = "invalid_lease_for_suspend"
