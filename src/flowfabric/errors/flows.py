"""Errors about flows, members and edges."""

from flowfabric.errors.base import (
    ConflictError,
    ContentionError,
    NotFoundError,
    StateError,
    ValidationError,
)


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
