"""Errors about executions and their attempts."""

from flowfabric.errors.base import NotFoundError, StateError


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
