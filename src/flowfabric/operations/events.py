"""Events of the durable log as readers receive them.

A word of the log that this release does not know is passed on as it is, never refused.
"""

from typing import Annotated, Final, get_args

import msgspec

from flowfabric.core.plan import Family
from flowfabric.operations.types import Answer, Limit, Namespace, Params, one_of

FAMILIES: Final[tuple[Family, ...]] = get_args(Family)
OUTCOMES: Final = ("success", "failure", "cancelled", "expired", "skipped")
LEASE_KINDS: Final = ("acquired", "released", "expired", "reclaimed", "revoked", "replay_initiated")
EFFECTS: Final = ("satisfied", "buffered", "deduped")

# Opaque text. Empty stands for now, `oldest` for the first entry still kept.
Cursor = str


class _Event(Answer, frozen=True, kw_only=True, tag_field="family"):
    """To read on behind an event, pass its cursor."""

    cursor: Cursor

    @property
    def family(self) -> str:
        return str(self.__struct_config__.tag)


class CompletionEvent(_Event, frozen=True, kw_only=True, tag="completion"):
    """An execution ended, whatever ended it."""

    execution_id: str
    flow_id: str = ""
    outcome: Annotated[str, one_of(*OUTCOMES)]
    at: int


class LeaseEvent(_Event, frozen=True, kw_only=True, tag="lease"):
    """A lease began or ended; only the fields its kind has are set."""

    execution_id: str
    kind: Annotated[str, one_of(*LEASE_KINDS)]
    at: int
    lease_id: str = ""
    worker_instance_id: str = ""
    reason: str = ""
    prev_owner: str = ""
    new_lease_id: str = ""
    new_owner: str = ""
    revoked_by: Annotated[str, one_of("operator", "reconciler", "backend")] = ""
    replay_count: int = 0
    replay_type: str = ""


class SignalEvent(_Event, frozen=True, kw_only=True, tag="signal"):
    """A signal was accepted, buffered or recognised as a repeat."""

    execution_id: str
    signal_id: str
    waitpoint_id: str = ""
    source_identity: str = ""
    effect: Annotated[str, one_of(*EFFECTS)]
    at: int


class OperatorEvent(_Event, frozen=True, kw_only=True, tag="operator"):
    """Somebody intervened, on an execution or, without one, on a flow."""

    execution_id: str = ""
    flow_id: str = ""
    event_type: str
    details: dict[str, str]
    at: int


class FlowEvent(_Event, frozen=True, kw_only=True, tag="flow"):
    """A flow came to an end."""

    flow_id: str
    event: str
    state: str
    at: int


class BackpressureEvent(_Event, frozen=True, kw_only=True, tag="backpressure"):
    """Entries were missed: the cursor is older than the first entry still kept. Read again what
    matters; the feed goes on."""

    reason: str


class CorruptionEvent(_Event, frozen=True, kw_only=True, tag="corruption"):
    """One entry of the log cannot be read; the feed goes on behind it."""

    reason: str


Event = (
    CompletionEvent
    | LeaseEvent
    | SignalEvent
    | OperatorEvent
    | FlowEvent
    | BackpressureEvent
    | CorruptionEvent
)


class EventQuery(Params, frozen=True, kw_only=True):
    """Which events to read. `families` are separated by commas, none stands for all; `tag` is
    `key=value`, the key one of the searchable tags."""

    families: str = ""
    namespace: Namespace = ""
    tag: str = ""
    cursor: Cursor = ""
    limit: Limit = 100
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=30_000)] = 0


class EventScope(msgspec.Struct, frozen=True, kw_only=True):
    """Whose events to follow: an unset member matches all events, all that are set must match."""

    namespace: str = ""
    instance_tag: tuple[str, str] | None = None
    partitions: frozenset[int] = frozenset()
    # Only these namespaces; None for all.
    namespaces: frozenset[str] | None = None
