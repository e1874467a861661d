"""Errors about suspensions, waitpoints, signals and their tokens."""

from flowfabric.errors.base import (
    BugError,
    ConflictError,
    ContentionError,
    StateError,
    ValidationError,
)


class ExecutionNotSuspended(StateError):
    """The execution is not suspended (any more): it was resumed or has ended."""

    code = "execution_not_suspended"
    category = "informational"


class AlreadySuspended(StateError):
    """The execution is already suspended; the open suspension stands."""

    code = "already_suspended"
    category = "informational"


class AlreadySatisfied(StateError):
    """The condition was met before the suspend: carry on, you still hold the lease."""

    code = "already_satisfied"
    category = "informational"
    status = None


class WaitpointClosed(StateError):
    """The signal came too late: nobody is waiting at this waitpoint any more."""

    code = "waitpoint_closed"
    category = "informational"


class WaitpointNotFound(ContentionError):
    """The execution has no such waitpoint; it may be about to create it."""

    code = "waitpoint_not_found"
    category = "retryable"


class NoWaitpointToApprove(WaitpointNotFound):
    """An approval named a waitpoint which the execution does not have."""

    status = 404


class TargetNotSignalable(StateError):
    """The execution cannot receive a signal in its present state."""

    code = "target_not_signalable"


class SignalLimitExceeded(ValidationError):
    """The execution has received as many signals as its policy allows."""

    code = "signal_limit_exceeded"


class InvalidToken(ValidationError):
    """The token does not open this waitpoint: use the one handed out with it."""

    code = "invalid_token"


class MissingToken(ValidationError):
    """A signal needs the token of its waitpoint."""

    code = "missing_token"


class TokenExpired(ValidationError):
    """The key that signed this token has been retired; the token opens nothing any more."""

    code = "token_expired"


class WaitpointNotTokenBound(ValidationError):
    """The pending waitpoint was stored without a token and cannot be signalled."""

    code = "waitpoint_not_token_bound"


class HmacSecretNotInitialized(BugError):
    """The store holds no signing key: configure a secret and start the server again."""

    code = "hmac_secret_not_initialized"
    category = "terminal"


class InvalidSecret(BugError):
    """A stored signing key is unreadable: rotate to a new one."""

    code = "invalid_secret"


class WaitpointNotPending(StateError):
    """The waitpoint to suspend on is already in use or closed."""

    code = "waitpoint_not_pending"
    category = "informational"


class PendingWaitpointExpired(StateError):
    """The pending waitpoint was not used in time: create another."""

    code = "pending_waitpoint_expired"
    category = "informational"


class InvalidWaitpointForExecution(ValidationError):
    """The waitpoint belongs to another execution or attempt."""

    code = "invalid_waitpoint_for_execution"


class WaitpointAlreadyExists(ConflictError):
    """A waitpoint with this id is already open."""

    code = "waitpoint_already_exists"
    category = "informational"


class WaitpointNotOpen(StateError):
    """There is no open waitpoint to close."""

    code = "waitpoint_not_open"
    category = "informational"


class AdditionalWaitpointBindingMalformed(ValidationError):
    """An extra waitpoint of the suspend has an unreadable id or key."""

    code = "additional_waitpoint_binding_malformed"


class UsePendingWithExtrasUnsupported(ValidationError):
    """A pending waitpoint stands alone: use fresh ones to wait on several."""

    code = "use_pending_with_extras_unsupported"


class InvalidKid(ValidationError):
    """A signing key's id is 1 to 64 letters, digits, dots, underscores or hyphens."""

    code = "invalid_kid"


class InvalidSecretHex(ValidationError):
    """The new signing secret is not an even, non-empty run of hex digits."""

    code = "invalid_secret_hex"


class InvalidGraceMs(ValidationError):
    """How long a replaced key stays valid must be a whole number of ms, zero or more."""

    code = "invalid_grace_ms"


class RotationConflict(ConflictError):
    """This key id is installed with another secret: choose a new id."""

    code = "rotation_conflict"
