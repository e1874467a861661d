"""Errors about executions and flows: claims and leases, output, limits, graphs."""

from flowfabric.errors.base import (
    ConflictError,
    ContentionError,
    NotFoundError,
    StateError,
    SubscriptionError,
    ValidationError,
)


class ExecutionNotFound(NotFoundError):
    """No execution has this id; it was never created, or it has been purged."""

    code = "execution_not_found"


class ExecutionNotTerminal(StateError):
    """Only a finished execution can be replayed: wait for it, or cancel it first."""

    code = "execution_not_terminal"


class MaxReplaysExhausted(StateError):
    """The execution was replayed as often as its policy allows."""

    code = "max_replays_exhausted"


class MaxRetriesExhausted(StateError):
    """The lease was lost as often as the policy tolerates; the execution has failed."""

    code = "max_retries_exhausted"


# ---- claims and grants


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


# ---- leases and fences


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


# ---- output and event subscriptions


class StreamClosed(StateError):
    """The attempt's stream has ended and takes no more frames."""

    code = "stream_closed"


class StaleOwnerCannotAppend(StateError):
    """Only the holder of the current lease may append: stop this work."""

    code = "stale_owner_cannot_append"


class RetentionLimitExceeded(ValidationError):
    """The frame or summary is too large or too deep: send less, or keep it elsewhere."""

    code = "retention_limit_exceeded"
    status = 413


class StreamDisconnected(SubscriptionError):
    """The subscription broke off: subscribe again from the cursor in the details."""

    code = "stream_disconnected"


class StreamBackpressure(SubscriptionError):
    """You read too slowly and missed entries: refresh what you show from current state."""

    code = "stream_backpressure"
    category = "informational"


# ---- budgets and quotas


class BudgetExceeded(StateError):
    """A hard limit is spent: stop, and fail with category `budget_exceeded`."""

    code = "budget_exceeded"
    category = "cooperative"
    status = None


class BudgetNotFound(NotFoundError):
    """No budget, or no parent budget, has this id."""

    code = "budget_not_found"


class InvalidQuotaSpec(ValidationError):
    """A quota that limits the rate needs the window it is counted in."""

    code = "invalid_quota_spec"


# ---- flows, members and edges


class FlowNotFound(NotFoundError):
    """No flow has this id; it was never created, or it has been purged."""

    code = "flow_not_found"


class FlowAlreadyTerminal(StateError):
    """The flow was cancelled and takes no more changes."""

    code = "flow_already_terminal"


class ExecutionAlreadyInFlow(ConflictError):
    """The execution is a member of another flow, named in the detail."""

    code = "execution_already_in_flow"


class ExecutionNotInFlow(StateError):
    """The execution is not a member of this flow."""

    code = "execution_not_in_flow"


class InvalidDependency(ValidationError):
    """The edge is missing or does not fit the flow."""

    code = "invalid_dependency"


class StaleGraphRevision(ContentionError):
    """The graph was edited meanwhile: read it again and repeat the edit."""

    code = "stale_graph_revision"
    category = "retryable"


class CycleDetected(ConflictError):
    """The edge would make the flow wait for itself."""

    code = "cycle_detected"


class SelfReferencingEdge(ConflictError):
    """An edge cannot lead from an execution to itself."""

    code = "self_referencing_edge"


class GraphTooLargeForCycleCheck(ValidationError):
    """The graph is too large to be searched edge by edge: submit it as a whole."""

    code = "graph_too_large_for_cycle_check"


class DependencyAlreadyExists(ConflictError):
    """The edge exists already; the details carry it as stored."""

    code = "dependency_already_exists"
