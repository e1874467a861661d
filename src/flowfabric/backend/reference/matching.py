"""A listing's filter as a test of one record."""

from collections.abc import Callable
from typing import Final

from flowfabric.backend.types import Filter
from flowfabric.core.ids import partition_of
from flowfabric.core.record import Record
from flowfabric.core.states import BLOCK_REASONS, FINAL, STATES, public_state
from flowfabric.errors import InvalidInput

# Stands for all five final states.
TERMINAL: Final = "terminal"
_BUCKETS: Final = (
    *sorted(STATES - {"blocked"}),
    *(f"blocked:{reason}" for reason in sorted(BLOCK_REASONS)),
)

_EXACT: Final = ("namespace", "lane", "reason", "kind", "flow_id")
_Test = Callable[[Record], bool]


def matcher(wanted: Filter) -> _Test:
    """Whether a record is one the filter asks for; what is unset there is not looked at."""
    exact = [(name, value) for name in _EXACT if (value := getattr(wanted, name))]
    tests = _tests(wanted)

    def matches(record: Record) -> bool:
        return all(getattr(record, name) == value for name, value in exact) and all(
            test(record) for test in tests
        )

    return matches


def _tests(wanted: Filter) -> list[_Test]:
    tests: list[_Test] = []
    if wanted.state or wanted.public_state:
        tests.append(lambda record: is_state_wanted(wanted, record.state, record.reason))
    if wanted.worker_instance_id:
        tests.append(
            lambda record: (
                record.state == "active" and record.worker_instance_id == wanted.worker_instance_id
            )
        )
    if wanted.tag is not None:
        name, value = wanted.tag
        tests.append(lambda record: record.tags.get(name) == value)
    if wanted.created_from:
        tests.append(lambda record: record.created_at >= wanted.created_from)
    if wanted.created_before:
        tests.append(lambda record: record.created_at < wanted.created_before)
    if wanted.partition is not None:
        tests.append(lambda record: partition_of(record.execution_id) == wanted.partition)
    return tests


def is_state_wanted(wanted: Filter, state: str, reason: str) -> bool:
    if wanted.public_state and public_state(state, reason) != wanted.public_state:
        return False
    if wanted.state == TERMINAL:
        return state in FINAL
    return not wanted.state or state == wanted.state


def lane_buckets(wanted: Filter) -> list[str]:
    """The states (and reasons) under which a lane lists what the filter asks for."""
    if not (wanted.namespace and wanted.lane and (wanted.state or wanted.public_state)):
        raise InvalidInput("order: a lane's own order needs namespace, lane and state")
    return [bucket for bucket in _BUCKETS if _is_bucket_wanted(wanted, bucket)]


def _is_bucket_wanted(wanted: Filter, bucket: str) -> bool:
    state, _, reason = bucket.partition(":")
    if state == "blocked" and wanted.reason and reason != wanted.reason:
        return False
    return is_state_wanted(wanted, state, reason)
