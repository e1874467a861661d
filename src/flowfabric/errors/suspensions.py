"""Errors about suspensions, waitpoints, signals and their tokens."""

from flowfabric.errors.base import (
    BugError,
    ConflictError,
    ContentionError,
    StateError,
    ValidationError,
)


class ExecutionNotSuspended(StateError, code="execution_not_suspended", category="informational"):
    """The execution is not suspended (any more): it was resumed or has ended."""


class AlreadySuspended(StateError, code="already_suspended", category="informational"):
    """The execution is already suspended; the open suspension stands."""


class AlreadySatisfied(StateError, code="already_satisfied", category="informational", status=None):
    """The condition was met before the suspend: carry on, you still hold the lease."""


class WaitpointClosed(StateError, code="waitpoint_closed", category="informational"):
    """The signal came too late: nobody is waiting at this waitpoint any more."""


class WaitpointNotFound(ContentionError, code="waitpoint_not_found", category="retryable"):
    """The execution has no such waitpoint; it may be about to create it."""


class NoWaitpointToApprove(WaitpointNotFound, status=404):
    """An approval named a waitpoint which the execution does not have."""


class TargetNotSignalable(StateError, code="target_not_signalable"):
    """The execution cannot receive a signal in its present state."""


class SignalLimitExceeded(ValidationError, code="signal_limit_exceeded"):
    """The execution has received as many signals as its policy allows."""


class InvalidToken(ValidationError, code="invalid_token"):
    """The token does not open this waitpoint: use the one handed out with it."""


class MissingToken(ValidationError, code="missing_token"):
    """A signal needs the token of its waitpoint."""


class TokenExpired(ValidationError, code="token_expired"):
    """The key that signed this token has been retired; the token opens nothing any more."""


class WaitpointNotTokenBound(ValidationError, code="waitpoint_not_token_bound"):
    """The pending waitpoint was stored without a token and cannot be signalled."""


class HmacSecretNotInitialized(BugError, code="hmac_secret_not_initialized", category="terminal"):
    """The store holds no signing key: configure a secret and start the server again."""


class InvalidSecret(BugError, code="invalid_secret"):
    """A stored signing key is unreadable: rotate to a new one."""


class WaitpointNotPending(StateError, code="waitpoint_not_pending", category="informational"):
    """The waitpoint to suspend on is already in use or closed."""


class PendingWaitpointExpired(
    StateError, code="pending_waitpoint_expired", category="informational"
):
    """The pending waitpoint was not used in time: create another."""


class InvalidWaitpointForExecution(ValidationError, code="invalid_waitpoint_for_execution"):
    """The waitpoint belongs to another execution or attempt."""


class WaitpointAlreadyExists(
    ConflictError, code="waitpoint_already_exists", category="informational"
):
    """A waitpoint with this id is already open."""


class WaitpointNotOpen(StateError, code="waitpoint_not_open", category="informational"):
    """There is no open waitpoint to close."""


class AdditionalWaitpointBindingMalformed(
    ValidationError, code="additional_waitpoint_binding_malformed"
):
    """An extra waitpoint of the suspend has an unreadable id or key."""


class UsePendingWithExtrasUnsupported(ValidationError, code="use_pending_with_extras_unsupported"):
    """A pending waitpoint stands alone: use fresh ones to wait on several."""


class InvalidKid(ValidationError, code="invalid_kid"):
    """A signing key's id is 1 to 64 letters, digits, dots, underscores or hyphens."""


class InvalidSecretHex(ValidationError, code="invalid_secret_hex"):
    """The new signing secret is not an even number of hex digits, 32 to 1024 of them."""


class InvalidGraceMs(ValidationError, code="invalid_grace_ms"):
    """How long a replaced key stays valid must be a whole number of ms, zero or more."""


class RotationConflict(ConflictError, code="rotation_conflict"):
    """This key id is installed with another secret: choose a new id."""
