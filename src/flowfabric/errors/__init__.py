"""Every error FlowFabric raises, in one tree.

A family says what kind of trouble it is, a leaf is one error code. Catch a leaf to handle one case,
a family to handle a kind, `FlowFabricError` for all. `code`, `category`, `status` and `retryable`
are class attributes; server, client and docs read them here.

    FlowFabricError
    ├── NotFoundError
    │     ExecutionNotFound FlowNotFound BudgetNotFound NotFound
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
          UnsupportedStore

A code that has another status in some place has a variant for it, derived from the code's own
class: `InvalidBody` is an `InvalidJson`; so has one of which some cases may be tried again:
`Unreachable` is an `HttpError`, `TryLater` an `ApiError`. The code `timeout` has two leaves:
`TimedOut` when the operation itself took too long, `StoreTimeout` when the store did not answer.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from flowfabric.errors.base import (
    BugError,
    Category,
    ConflictError,
    ContentionError,
    FlowFabricError,
    LocalError,
    NotFoundError,
    ServiceError,
    StateError,
    SubscriptionError,
    TransportError,
    ValidationError,
)
from flowfabric.errors.claims import (
    CapabilityMismatch,
    ClaimGrantExpired,
    DepsNotSatisfied,
    DownstreamTerminal,
    ExecutionNotEligible,
    ExecutionNotLeaseable,
    ExecutionNotReclaimable,
    GrantAlreadyExists,
    InvalidBlockingReason,
    InvalidCapabilities,
    InvalidClaimGrant,
    InvalidPolicyJson,
    LaneNotAccepting,
    NotAResumedExecution,
    NotBlockedByDeps,
    NotRunnable,
    RetryExhausted,
    UseClaimResumedExecution,
)
from flowfabric.errors.executions import (
    ExecutionNotFound,
    ExecutionNotTerminal,
    MaxReplaysExhausted,
    MaxRetriesExhausted,
)
from flowfabric.errors.flows import (
    CycleDetected,
    DependencyAlreadyExists,
    ExecutionAlreadyInFlow,
    ExecutionNotInFlow,
    FlowAlreadyTerminal,
    FlowNotFound,
    GraphTooLargeForCycleCheck,
    InvalidDependency,
    SelfReferencingEdge,
    StaleGraphRevision,
)
from flowfabric.errors.leases import (
    ExecutionNotActive,
    FenceRequired,
    InvalidLeaseForSuspend,
    LeaseExpired,
    LeaseRevoked,
    NoActiveLease,
    NoLeaseToRevoke,
    PartialFenceTriple,
    StaleLease,
)
from flowfabric.errors.limits import (
    BudgetExceeded,
    BudgetNotFound,
    InvalidQuotaSpec,
)
from flowfabric.errors.outcomes import (
    ConfigError,
    ExecutionCancelled,
    ExecutionExpired,
    ExecutionFailed,
    ExecutionSkipped,
    ResultTimeout,
    UnsupportedStore,
)
from flowfabric.errors.requests import (
    Bug,
    Conflict,
    Corruption,
    Forbidden,
    HandleFromOtherBackend,
    InvalidBody,
    InvalidContentType,
    InvalidInput,
    InvalidJson,
    InvalidParameter,
    InvalidTagKey,
    InvariantViolation,
    MethodNotAllowed,
    Nondeterminism,
    NotFound,
    PartitionMismatch,
    PayloadTooLarge,
    Unauthorized,
)
from flowfabric.errors.service import (
    ApiError,
    AuthFault,
    BusyLoading,
    ClusterFault,
    HttpError,
    MalformedResponse,
    OtherFault,
    ProtocolFault,
    ResourceExhausted,
    ScriptNotLoaded,
    StoreTimeout,
    TimedOut,
    TransportFault,
    TryLater,
    Unavailable,
    Unreachable,
    WorkerAtCapacity,
)
from flowfabric.errors.streams import (
    RetentionLimitExceeded,
    StaleOwnerCannotAppend,
    StreamBackpressure,
    StreamClosed,
    StreamDisconnected,
)
from flowfabric.errors.suspension import (
    AdditionalWaitpointBindingMalformed,
    AlreadySatisfied,
    AlreadySuspended,
    ExecutionNotSuspended,
    HmacSecretNotInitialized,
    InvalidGraceMs,
    InvalidKid,
    InvalidSecret,
    InvalidSecretHex,
    InvalidToken,
    InvalidWaitpointForExecution,
    MissingToken,
    NoWaitpointToApprove,
    PendingWaitpointExpired,
    RotationConflict,
    SignalLimitExceeded,
    TargetNotSignalable,
    TokenExpired,
    UsePendingWithExtrasUnsupported,
    WaitpointAlreadyExists,
    WaitpointClosed,
    WaitpointNotFound,
    WaitpointNotOpen,
    WaitpointNotPending,
    WaitpointNotTokenBound,
)


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

__all__ = [
    "ERRORS",
    "AdditionalWaitpointBindingMalformed",
    "AlreadySatisfied",
    "AlreadySuspended",
    "ApiError",
    "AuthFault",
    "BudgetExceeded",
    "BudgetNotFound",
    "Bug",
    "BugError",
    "BusyLoading",
    "CapabilityMismatch",
    "Category",
    "ClaimGrantExpired",
    "ClusterFault",
    "ConfigError",
    "Conflict",
    "ConflictError",
    "ContentionError",
    "Corruption",
    "CycleDetected",
    "DependencyAlreadyExists",
    "DepsNotSatisfied",
    "DownstreamTerminal",
    "ExecutionAlreadyInFlow",
    "ExecutionCancelled",
    "ExecutionExpired",
    "ExecutionFailed",
    "ExecutionNotActive",
    "ExecutionNotEligible",
    "ExecutionNotFound",
    "ExecutionNotInFlow",
    "ExecutionNotLeaseable",
    "ExecutionNotReclaimable",
    "ExecutionNotSuspended",
    "ExecutionNotTerminal",
    "ExecutionSkipped",
    "FenceRequired",
    "FlowAlreadyTerminal",
    "FlowFabricError",
    "FlowNotFound",
    "Forbidden",
    "GrantAlreadyExists",
    "GraphTooLargeForCycleCheck",
    "HandleFromOtherBackend",
    "HmacSecretNotInitialized",
    "HttpError",
    "InvalidBlockingReason",
    "InvalidBody",
    "InvalidCapabilities",
    "InvalidClaimGrant",
    "InvalidContentType",
    "InvalidDependency",
    "InvalidGraceMs",
    "InvalidInput",
    "InvalidJson",
    "InvalidKid",
    "InvalidLeaseForSuspend",
    "InvalidParameter",
    "InvalidPolicyJson",
    "InvalidQuotaSpec",
    "InvalidSecret",
    "InvalidSecretHex",
    "InvalidTagKey",
    "InvalidToken",
    "InvalidWaitpointForExecution",
    "InvariantViolation",
    "LaneNotAccepting",
    "LeaseExpired",
    "LeaseRevoked",
    "LocalError",
    "MalformedResponse",
    "MaxReplaysExhausted",
    "MaxRetriesExhausted",
    "MethodNotAllowed",
    "MissingToken",
    "NoActiveLease",
    "NoLeaseToRevoke",
    "NoWaitpointToApprove",
    "Nondeterminism",
    "NotAResumedExecution",
    "NotBlockedByDeps",
    "NotFound",
    "NotFoundError",
    "NotRunnable",
    "OtherFault",
    "PartialFenceTriple",
    "PartitionMismatch",
    "PayloadTooLarge",
    "PendingWaitpointExpired",
    "ProtocolFault",
    "ResourceExhausted",
    "ResultTimeout",
    "RetentionLimitExceeded",
    "RetryExhausted",
    "RotationConflict",
    "ScriptNotLoaded",
    "SelfReferencingEdge",
    "ServiceError",
    "SignalLimitExceeded",
    "StaleGraphRevision",
    "StaleLease",
    "StaleOwnerCannotAppend",
    "StateError",
    "StoreTimeout",
    "StreamBackpressure",
    "StreamClosed",
    "StreamDisconnected",
    "SubscriptionError",
    "TargetNotSignalable",
    "TimedOut",
    "TokenExpired",
    "TransportError",
    "TransportFault",
    "TryLater",
    "Unauthorized",
    "Unavailable",
    "Unreachable",
    "UnsupportedStore",
    "UseClaimResumedExecution",
    "UsePendingWithExtrasUnsupported",
    "ValidationError",
    "WaitpointAlreadyExists",
    "WaitpointClosed",
    "WaitpointNotFound",
    "WaitpointNotOpen",
    "WaitpointNotPending",
    "WaitpointNotTokenBound",
    "WorkerAtCapacity",
]
