"""Errors about executions and flows: claims and leases, output, limits, graphs."""

from flowfabric.errors.base import (
    ConflictError,
    ContentionError,
    NotFoundError,
    StateError,
    SubscriptionError,
    ValidationError,
)


class ExecutionNotFound(NotFoundError, code="execution_not_found"):
    """No execution has this id; it was never created, or it has been purged."""


class ExecutionNotTerminal(StateError, code="execution_not_terminal"):
    """Only a finished execution can be replayed: wait for it, or cancel it first."""


class MaxReplaysExhausted(StateError, code="max_replays_exhausted"):
    """The execution was replayed as often as its policy allows."""


class MaxRetriesExhausted(StateError, code="max_retries_exhausted"):
    """The lease was lost as often as the policy tolerates; the execution has failed."""


# ---- claims and grants


class UseClaimResumedExecution(
    ContentionError, code="use_claim_resumed_execution", category="retryable"
):
    """A paused attempt is waiting to go on: claim it as resumed."""


class NotAResumedExecution(ContentionError, code="not_a_resumed_execution", category="retryable"):
    """There is no paused attempt to continue: make an ordinary claim."""


class ExecutionNotLeaseable(ContentionError, code="execution_not_leaseable", category="retryable"):
    """The execution moved on after the grant was issued: ask for other work."""


class InvalidClaimGrant(ContentionError, code="invalid_claim_grant", category="retryable"):
    """The grant is unknown, already used or meant for another worker: ask for a new one."""


class ClaimGrantExpired(ContentionError, code="claim_grant_expired", category="retryable"):
    """The grant was used too late: ask for a new one."""


class ExecutionNotEligible(
    ContentionError, code="execution_not_eligible", category="informational"
):
    """The execution is not in the waiting or blocked state this call expects; nothing was done."""


class GrantAlreadyExists(StateError, code="grant_already_exists", category="informational"):
    """A grant for this execution is still open; wait until it is used or lapses."""


class ExecutionNotReclaimable(
    ContentionError, code="execution_not_reclaimable", category="informational"
):
    """The lease is not lost, so there is nothing to take over."""


class CapabilityMismatch(
    ValidationError, code="capability_mismatch", category="retryable", status=409
):
    """The worker lacks the listed capabilities; one that has them can claim this execution."""


class InvalidCapabilities(ValidationError, code="invalid_capabilities"):
    """A capability list is malformed or too large; the detail names the side and the rule."""


class InvalidPolicyJson(ValidationError, code="invalid_policy_json"):
    """The execution policy cannot be used; the detail names the member and what is wrong."""


class LaneNotAccepting(StateError, code="lane_not_accepting"):
    """The lane is draining or disabled: submit to another lane, or open this one again."""


class InvalidBlockingReason(ValidationError, code="invalid_blocking_reason"):
    """An execution cannot be blocked for that reason."""


class NotRunnable(StateError, code="not_runnable"):
    """Only a runnable execution can be promoted."""


class DownstreamTerminal(StateError, code="terminal"):
    """The execution at the downstream end of the new edge has already ended."""


class NotBlockedByDeps(StateError, code="not_blocked_by_deps", category="informational"):
    """The execution is not waiting for dependencies; there is nothing to promote."""


class DepsNotSatisfied(StateError, code="deps_not_satisfied", category="informational"):
    """Dependencies are still open; the execution is released when they are resolved."""


class RetryExhausted(ContentionError, code="retry_exhausted", category="retryable", status=503):
    """Other writers came first each time the change was tried: try again after a pause."""


# ---- leases and fences


class StaleLease(StateError, code="stale_lease"):
    """Your lease, epoch or attempt has been superseded: stop, another worker owns the work."""


class LeaseExpired(StateError, code="lease_expired"):
    """The lease ran out before it was renewed: stop, the work is being offered again."""


class LeaseRevoked(StateError, code="lease_revoked"):
    """The lease was taken away by an operator or the engine: stop this work."""


class ExecutionNotActive(ContentionError, code="execution_not_active"):
    """Nobody holds this execution any more.

    The details tell how it stands (`terminal_outcome`, `current_lease_epoch`, `lifecycle_phase`,
    `current_attempt_id`), so that a repeated call can recognise its own earlier success.
    """


class NoActiveLease(ContentionError, code="no_active_lease", category="informational"):
    """No lease is held, so there is nothing to act on: carry on."""


class NoLeaseToRevoke(NoActiveLease, status=404):
    """A revocation found no lease; to the operator who named it, it does not exist."""


class FenceRequired(ValidationError, code="fence_required"):
    """The call must prove ownership: send lease id, lease epoch and attempt id."""


class PartialFenceTriple(ValidationError, code="partial_fence_triple"):
    """Only part of the fence was given: send all of lease id, epoch and attempt id, or none."""


class InvalidLeaseForSuspend(ValidationError, code="invalid_lease_for_suspend"):
    """The suspend names another attempt than the one holding the lease."""


# ---- output and event subscriptions


class StreamClosed(StateError, code="stream_closed"):
    """The attempt's stream has ended and takes no more frames."""


class StaleOwnerCannotAppend(StateError, code="stale_owner_cannot_append"):
    """Only the holder of the current lease may append: stop this work."""


class RetentionLimitExceeded(ValidationError, code="retention_limit_exceeded", status=413):
    """The frame or summary is too large or too deep: send less, or keep it elsewhere."""


class StreamDisconnected(SubscriptionError, code="stream_disconnected"):
    """The subscription broke off: subscribe again from the cursor in the details."""


class StreamBackpressure(SubscriptionError, code="stream_backpressure", category="informational"):
    """You read too slowly and missed entries: refresh what you show from current state."""


# ---- budgets and quotas


class BudgetExceeded(StateError, code="budget_exceeded", category="cooperative", status=None):
    """A hard limit is spent: stop, and fail with category `budget_exceeded`."""


class BudgetNotFound(NotFoundError, code="budget_not_found"):
    """No budget of the namespace has this id or name; or no parent budget has it."""


class QuotaNotFound(NotFoundError, code="quota_not_found"):
    """No quota policy of the namespace has this id or name."""


class InvalidQuotaSpec(ValidationError, code="invalid_quota_spec"):
    """A quota that limits the rate needs the window it is counted in."""


# ---- flows, members and edges


class FlowNotFound(NotFoundError, code="flow_not_found"):
    """No flow has this id; it was never created, or it has been purged."""


class FlowAlreadyTerminal(StateError, code="flow_already_terminal"):
    """The flow was cancelled and takes no more changes."""


class ExecutionAlreadyInFlow(ConflictError, code="execution_already_in_flow"):
    """The execution is a member of another flow, named in the detail."""


class ExecutionNotInFlow(StateError, code="execution_not_in_flow"):
    """The execution is not a member of this flow."""


class InvalidDependency(ValidationError, code="invalid_dependency"):
    """The edge is missing or does not fit the flow."""


class StaleGraphRevision(ContentionError, code="stale_graph_revision", category="retryable"):
    """The graph was edited meanwhile: read it again and repeat the edit."""


class CycleDetected(ConflictError, code="cycle_detected"):
    """The edge would make the flow wait for itself."""


class SelfReferencingEdge(ConflictError, code="self_referencing_edge"):
    """An edge cannot lead from an execution to itself."""


class GraphTooLargeForCycleCheck(ValidationError, code="graph_too_large_for_cycle_check"):
    """The graph is too large to be searched edge by edge: submit it as a whole."""


class DependencyAlreadyExists(ConflictError, code="dependency_already_exists"):
    """The edge exists already; the details carry it as stored."""
