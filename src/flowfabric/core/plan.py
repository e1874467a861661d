"""Plans: what a decision wants done to one record, as flat data a store can apply.

A plan has no expressions and no branches. Instants are given as durations (the store adds its own
clock) or, when a user named them, as they are. A fence in the guard proves that the caller still
owns the attempt it speaks for.

A flow plan is the same for a flow, its graph and some of its members at once: it is applied wholly
or not at all, and every member it touches carries a guard of its own.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from flowfabric.core.documents import Redacted
from flowfabric.core.graph import Flow, GraphEdit, Group
from flowfabric.core.journal import JournalEntry
from flowfabric.core.record import INSTANTS, Record
from flowfabric.core.states import MOVES, STATES, AttemptState, public_state
from flowfabric.errors import InvalidInput, PartialFenceTriple

# Exact in a double, which is what some stores count with.
LAST_EPOCH: Final = 2**53 - 1


class Fence(msgspec.Struct, frozen=True, gc=False):
    """Lease, epoch and attempt together; any of them being stale makes the whole stale."""

    lease_id: str
    lease_epoch: int
    attempt_id: str


def fence_from(
    lease_id: str | None, lease_epoch: int | None, attempt_id: str | None
) -> Fence | None:
    """The fence a caller sent, or None when it sent none of it."""
    if lease_id and lease_epoch and attempt_id:
        _check_types(lease_id, lease_epoch, attempt_id)
        return Fence(lease_id, lease_epoch, attempt_id)
    parts = {"lease_id": lease_id, "lease_epoch": lease_epoch, "attempt_id": attempt_id}
    absent = [name for name, value in parts.items() if not value]
    if len(absent) == len(parts):
        return None
    raise PartialFenceTriple(f"missing {', '.join(absent)}")


def _check_types(lease_id: object, lease_epoch: object, attempt_id: object) -> None:
    if type(lease_epoch) is not int or not 1 <= lease_epoch <= LAST_EPOCH:
        raise InvalidInput(f"lease_epoch: expected an integer in 1..{LAST_EPOCH}")
    for name, value in (("lease_id", lease_id), ("attempt_id", attempt_id)):
        if not isinstance(value, str):
            raise InvalidInput(f"{name}: expected a string, got {type(value).__name__}")


Family = Literal["completion", "lease", "signal", "operator", "flow"]
EventKind = Literal[
    "acquired",
    "released",
    "reclaimed",
    "expired",
    "revoked",
    "signal",
    "priority_changed",
    "replay_initiated",
    "flow_cancel_requested",
    "finished",
    "budget_soft_breach",
]
Blob = Literal["input", "result"]


class Guard(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What must hold for a plan to be applied. A state may be narrowed as `state/reason`."""

    states: frozenset[str]
    fence: Fence | None = None
    version: int = 0
    suspension_id: str = ""
    grant_id: str = ""
    # A member's flow must not be cancelled.
    uncancelled: bool = False
    # How many signals are unread; any number when it is None.
    mail_count: int | None = None


class Timer(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """Instants to set: durations from the step's now, or an instant somebody named."""

    lease_for: int | None = None
    attempt_for: int | None = None
    wake_in: int | None = None
    deadline_in: int | None = None
    pending_in: int | None = None
    grant_for: int | None = None
    wake_at: int | None = None
    deadline_at: int | None = None
    pending_at: int | None = None


class EndAttempt(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="end"):
    state: AttemptState
    failure_reason: str = ""
    failure_category: str = ""


class PauseAttempt(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="pause"):
    """Paused by a suspension, or by the attempt itself under one of OWN_PAUSES."""

    suspension_id: str


OWN_PAUSES: Final = ("worker_delay", "waiting_children", "nondeterminism")


class Event(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One entry for the log. The store adds who held the record before the write."""

    kind: EventKind
    families: tuple[Family, ...]
    details: Mapping[str, str] = msgspec.field(default_factory=dict)


class Plan(Redacted, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    target: str
    rule: str
    guard: Guard
    op: str = ""
    set: Mapping[str, Any] = msgspec.field(default_factory=dict)
    # Fields that become the step's now.
    stamp: tuple[str, ...] = ()
    timer: Timer | None = None
    attempt: EndAttempt | PauseAttempt | None = None
    blobs: Mapping[Blob, bytes | None] = msgspec.field(default_factory=dict)
    documents: Mapping[str, bytes | None] = msgspec.field(default_factory=dict)
    # The number of the first entry that is dropped: 1 drops all, 0 none.
    drop_journal_from: int = 0
    # Steps that join the journal; one that is there already stays as it is.
    steps: tuple[JournalEntry, ...] = ()
    close_stream: str = ""
    graph: GraphEdit | None = None
    settle: bool = True
    event: Event | None = None
    want: Literal["brief", "record"] = "brief"

    # Documents hold bearer credentials, so no rendering shows their bodies.
    def __rich_repr__(self) -> list[tuple[str, object]]:
        fields = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return [(name, sorted(v) if name == "documents" else v) for name, v in fields]


class Brief(msgspec.Struct, frozen=True, gc=False):
    """All a lease holder needs to know of a record it changed itself. Only a gated one has slots
    that follow its lease."""

    state: str
    version: int
    wake_at: int
    gated: bool = False

    @property
    def public_state(self) -> str:
        """The plans whose makers ask for it block for dependencies only."""
        return public_state(self.state, "dependencies" if self.state == "blocked" else "")


class Applied(msgspec.Struct, frozen=True, gc=False):
    brief: Brief
    was: str
    now: int
    record: Record | None = None
    replayed: bool = False
    more: bool = False


class Refused(msgspec.Struct, frozen=True, gc=False):
    """The guard did not hold; `seen` is the record that did not fit, None when there is none."""

    seen: Record | None
    now: int


Answer = Applied | Refused

# What a plan must leave to the store: derived values, identity, and what only a claim writes.
_DERIVED: Final = frozenset(
    {"execution_id", "version", "moved_at", "changed_at", "due_at", "rank", "attempt"}
    | {"op_id", "op_state", "op_wake_at", "lease_epoch"}
)
SETTABLE: Final = frozenset(Record.__struct_fields__) - _DERIVED - frozenset(INSTANTS)
_INSTANTS: Final = frozenset(INSTANTS)
MAX_OP_BYTES: Final = 64


def check_plan(plan: Plan) -> None:
    """Refuse a plan no store could apply; a fault of the engine, found before any I/O."""
    if plan.rule not in MOVES:
        raise ValueError(f"unknown rule {plan.rule!r}")
    if not plan.set.keys() <= SETTABLE:
        _check_cleared(plan)
    if plan.op and (plan.guard.fence is None or len(plan.op.encode()) > MAX_OP_BYTES):
        raise ValueError(f"plan {plan.rule}: an operation id is at most 64 bytes, under a fence")
    if not plan.guard.states or not plan.guard.states <= STATES:
        _check_states(plan)


def _check_cleared(plan: Plan) -> None:
    for name, value in plan.set.items():
        # An instant is armed by the timer; `set` can only clear it.
        if name not in SETTABLE and (name not in _INSTANTS or value != 0):
            raise ValueError(f"plan {plan.rule} may not set {name}")


def _check_states(plan: Plan) -> None:
    unknown = {state.partition("/")[0] for state in plan.guard.states} - STATES
    if unknown or not plan.guard.states:
        raise ValueError(f"plan {plan.rule} guards unknown states {sorted(unknown)}")


FlowRule = Literal["join", "stage", "link", "policy", "cancel", "tag"]


class FlowGuard(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What must hold of the flow. A missing one never fits, unless the plan brings it along."""

    uncancelled: bool = True
    graph_revision: int | None = None
    version: int = 0


class Require(msgspec.Struct, frozen=True):
    """A member the plan does not change but counts on."""

    execution_id: str
    guard: Guard


class FlowPlan(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    flow_id: str
    rule: FlowRule
    guard: FlowGuard = FlowGuard()
    # Made in the same step when there is no such flow yet.
    create: Flow | None = None
    set: Mapping[str, Any] = msgspec.field(default_factory=dict)
    # Fields that become the step's now.
    stamp: tuple[str, ...] = ()
    # Written over the tags there are; nobody has to know those.
    tags: Mapping[str, str] = msgspec.field(default_factory=dict)
    requires: tuple[Require, ...] = ()
    members: tuple[Plan, ...] = ()
    graph: GraphEdit = GraphEdit()
    event: Event | None = None
    # End members that the flow's cancellation covers, as many as one step may.
    cancels: bool = False


class FlowApplied(msgspec.Struct, frozen=True):
    """The flow after the plan, the groups it put as they stand now, how many members it ended, and
    whether the flow has more to do."""

    flow: Flow
    now: int
    groups: tuple[Group, ...] = ()
    cancelled: int = 0
    more: bool = False


class FlowRefused(msgspec.Struct, frozen=True):
    """Something is not as the change expects; `flow` is the flow as seen, None without one, and
    `parent` that of a new child."""

    flow: Flow | None
    parent: Record | None = None


FlowAnswer = FlowApplied | FlowRefused

_SETTABLE: Final = frozenset({"cancel_policy", "cancel_reason"})
_STAMPED: Final = frozenset({"cancelled_at"})
# What a plan may do to a member: make it one, or let it wait for one more edge.
_MEMBER_RULES: Final = frozenset({"join", "await_edge"})


def check_flow_plan(plan: FlowPlan) -> None:
    """Refuse a plan no store could apply; a fault of the engine, found before any I/O."""
    if not plan.set.keys() <= _SETTABLE or not _STAMPED.issuperset(plan.stamp):
        raise ValueError(f"flow plan {plan.rule} may not set {sorted({*plan.set, *plan.stamp})}")
    if plan.create is not None and plan.create.flow_id != plan.flow_id:
        raise ValueError(f"flow plan {plan.rule} brings another flow along")
    for member in plan.members:
        check_plan(member)
        if member.rule not in _MEMBER_RULES:
            raise ValueError(f"flow plan {plan.rule} may not {member.rule} a member")
    for required in plan.requires:
        if not required.guard.states <= STATES or not required.guard.states:
            raise ValueError(f"flow plan {plan.rule} requires unknown states")
    if any(edge.flow_id != plan.flow_id for edge in plan.graph.edges):
        raise ValueError(f"flow plan {plan.rule} writes an edge of another flow")
