"""Errors about claiming, grants, capabilities and scheduling."""

from flowfabric.errors.base import ContentionError, StateError, ValidationError


class UseClaimResumedExecution(ContentionError):
    """A paused attempt is waiting to go on: claim it as resumed."""

    code = "use_claim_resumed_execution"
    category = "retryable"


class NotAResumedExecution(ContentionError):
    """There is no paused attempt to continue: make an ordinary claim."""

    code = "not_a_resumed_execution"
    category = "retryable"


class ExecutionNotLeaseable(ContentionError):
    """The execution moved on after the grant was issued: ask for other work."""

    code = "execution_not_leaseable"
    category = "retryable"


class InvalidClaimGrant(ContentionError):
    """The grant is unknown, already used or meant for another worker: ask for a new one."""

    code = "invalid_claim_grant"
    category = "retryable"


class ClaimGrantExpired(ContentionError):
    """The grant was used too late: ask for a new one."""

    code = "claim_grant_expired"
    category = "retryable"


class ExecutionNotEligible(ContentionError):
    """The execution is not in the waiting or blocked state this call expects; nothing was done."""

    code = "execution_not_eligible"
    category = "informational"


class GrantAlreadyExists(StateError):
    """A grant for this execution is still open; wait until it is used or lapses."""

    code = "grant_already_exists"
    category = "informational"


class ExecutionNotReclaimable(ContentionError):
    """The lease is not lost, so there is nothing to take over."""

    code = "execution_not_reclaimable"
    category = "informational"


class CapabilityMismatch(ValidationError):
    """The worker lacks the listed capabilities; one that has them can claim this execution."""

    code = "capability_mismatch"
    category = "retryable"
    status = 409


class InvalidCapabilities(ValidationError):
    """A capability list is malformed or too large; the detail names the side and the rule."""

    code = "invalid_capabilities"


class InvalidPolicyJson(ValidationError):
    """The execution policy cannot be used; the detail names the member and what is wrong."""

    code = "invalid_policy_json"


class LaneNotAccepting(StateError):
    """The lane is draining or disabled: submit to another lane, or open this one again."""

    code = "lane_not_accepting"


class InvalidBlockingReason(ValidationError):
    """An execution cannot be blocked for that reason."""

    code = "invalid_blocking_reason"


class NotRunnable(StateError):
    """Only a runnable execution can be promoted."""

    code = "not_runnable"


class DownstreamTerminal(StateError):
    """The execution at the downstream end of the new edge has already ended."""

    code = "terminal"


class NotBlockedByDeps(StateError):
    """The execution is not waiting for dependencies; there is nothing to promote."""

    code = "not_blocked_by_deps"
    category = "informational"


class DepsNotSatisfied(StateError):
    """Dependencies are still open; the execution is released when they are resolved."""

    code = "deps_not_satisfied"
    category = "informational"


class RetryExhausted(ContentionError):
    """Other writers came first each time the change was tried: try again after a pause."""

    code = "retry_exhausted"
    category = "retryable"
    status = 503
