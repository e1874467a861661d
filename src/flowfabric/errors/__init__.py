"""Every error FlowFabric raises, in one tree.

A family says what kind of trouble it is, a leaf is one error code. Catch a leaf to handle one case,
a family to handle a kind, `FlowFabricError` for all. `code`, `category`, `status` and `retryable`
are class attributes; server, client and docs read them here.

    FlowFabricError
    ├── NotFoundError
    │     ExecutionNotFound FlowNotFound BudgetNotFound QuotaNotFound NotFound
    ├── ValidationError
    │     FenceRequired PartialFenceTriple InvalidLeaseForSuspend CapabilityMismatch
    │     InvalidCapabilities InvalidPolicyJson InvalidBlockingReason SignalLimitExceeded
    │     InvalidToken MissingToken TokenExpired WaitpointNotTokenBound
    │     InvalidWaitpointForExecution AdditionalWaitpointBindingMalformed
    │     UsePendingWithExtrasUnsupported InvalidKid InvalidSecretHex InvalidGraceMs
    │     RetentionLimitExceeded InvalidDependency GraphTooLargeForCycleCheck InvalidQuotaSpec
    │     InvalidInput InvalidParameter InvalidJson InvalidContentType InvalidBody InvalidTagKey
    │     PayloadTooLarge MethodNotAllowed Unauthorized Forbidden Corruption
    │     HandleFromOtherBackend
    ├── ContentionError
    │     ExecutionNotActive NoActiveLease NoLeaseToRevoke UseClaimResumedExecution
    │     NotAResumedExecution ExecutionNotLeaseable InvalidClaimGrant ClaimGrantExpired
    │     ExecutionNotEligible ExecutionNotReclaimable RetryExhausted WaitpointNotFound
    │     NoWaitpointToApprove StaleGraphRevision
    ├── ConflictError
    │     WaitpointAlreadyExists RotationConflict ExecutionAlreadyInFlow CycleDetected
    │     SelfReferencingEdge DependencyAlreadyExists Conflict Nondeterminism
    │     PartitionMismatch
    ├── StateError
    │     StaleLease LeaseExpired LeaseRevoked GrantAlreadyExists LaneNotAccepting NotRunnable
    │     DownstreamTerminal NotBlockedByDeps DepsNotSatisfied ExecutionNotTerminal
    │     MaxReplaysExhausted MaxRetriesExhausted ExecutionNotSuspended AlreadySuspended
    │     AlreadySatisfied WaitpointClosed TargetNotSignalable WaitpointNotPending
    │     PendingWaitpointExpired WaitpointNotOpen StreamClosed StaleOwnerCannotAppend
    │     FlowAlreadyTerminal ExecutionNotInFlow BudgetExceeded
    ├── BugError
    │     HmacSecretNotInitialized InvalidSecret InvariantViolation Bug
    ├── ServiceError
    │     Unavailable ResourceExhausted TimedOut
    ├── TransportError
    │     StoreTimeout TransportFault ClusterFault BusyLoading AuthFault ScriptNotLoaded
    │     ProtocolFault OtherFault
    ├── SubscriptionError
    │     StreamDisconnected StreamBackpressure
    └── LocalError
          WorkerAtCapacity MalformedResponse HttpError Unreachable ApiError TryLater ConfigError
          ExecutionFailed ExecutionCancelled ExecutionExpired ExecutionSkipped ResultTimeout
          UnsupportedStore StepFailed StepTimeout CallTimeout
          NonRetryable

A code that has another status in some place has a variant for it, derived from the code's own
class: `InvalidBody` is an `InvalidJson`; so has one of which some cases may be tried again:
`Unreachable` is an `HttpError`, `TryLater` an `ApiError`. The code `timeout` has two leaves:
`TimedOut` when the operation itself took too long, `StoreTimeout` when the store did not answer.
"""

# ruff: noqa: F403, F405 - every error is public; a list of them would have to name each once more.
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from flowfabric.errors.base import *
from flowfabric.errors.executions import *
from flowfabric.errors.local import *
from flowfabric.errors.requests import *
from flowfabric.errors.suspensions import *


def _leaves(family: type[FlowFabricError]) -> Iterator[type[FlowFabricError]]:
    for child in family.__subclasses__():
        # A variant that only changes the status inherits its code and is not the code's class.
        if "code" in vars(child):
            yield child
        yield from _leaves(child)


ERRORS: Mapping[str, type[FlowFabricError]] = MappingProxyType(
    {leaf.code: leaf for leaf in _leaves(FlowFabricError)} | {TimedOut.code: TimedOut}
)
"""The class of each code; for `timeout` the one of the operation, not of the store."""
