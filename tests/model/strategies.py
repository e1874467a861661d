"""What random callers ask for: small worlds, so that calls meet each other often."""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from hypothesis import strategies as st

from flowfabric.backend.types import ClaimRequest, Filter, Order
from flowfabric.core.capabilities import set_id
from flowfabric.core.journal import JournalEntry
from flowfabric.core.queues import kind_id
from flowfabric.core.rules.attempts import Failure
from flowfabric.engine.attempts.leases import Revocation
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.operations.executions import GrantOrder
from flowfabric.operations.streams import Frame
from flowfabric.operations.workers import ClaimOrder, Registration
from tests.model.comparing import LANES

BUDGET: Final = "550e8400-e29b-41d4-a716-446655440000"
NOWHERE: Final = "{fp:1}:00000000-0000-4000-8000-000000000000"
WORKERS: Final = (("pool", "pool-1"), ("pool", "pool-2"), ("crew", "crew-1"))

namespaces: Final = st.sampled_from(["default", "default", "default", "other"])
lanes: Final = st.sampled_from(LANES)
workers: Final = st.sampled_from(WORKERS)
lease_lengths: Final = st.sampled_from([1, 1_000, 30_000, 60_000])
bodies: Final = st.sampled_from([b"", b"x", bytes(range(256))])
# Steps of the clock, the last one past every retention.
jumps: Final = st.sampled_from([1, 250, 999, 1_000, 1_000, 5_000, 30_000, 61_000, 90_000_000])
# Instants named by users, relative to now: past, present and future.
offsets: Final = st.sampled_from([-10_000, 0, 1, 1_000, 60_000])
maybe_offsets: Final = st.one_of(st.none(), offsets)

_backoffs: Final = st.sampled_from(
    [
        {"type": "fixed", "delay_ms": 0},
        {"type": "fixed", "delay_ms": 500},
        {"type": "exponential", "initial_delay_ms": 1_000, "jitter": True},
    ]
)
_retries: Final = st.fixed_dictionaries(
    {"max_retries": st.integers(0, 2), "backoff": _backoffs},
    optional={"retryable_categories": st.sampled_from([["timeout"], ["transient", "timeout"]])},
)
_timeouts: Final = st.fixed_dictionaries(
    {},
    optional={
        "attempt_timeout_ms": st.sampled_from([1, 1_500, 40_000]),
        "execution_deadline_ms": st.sampled_from([2_000, 120_000]),
    },
)
_capabilities: Final = st.sampled_from([["gpu"], ["cuda", "gpu"]])
policies: Final = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {},
        optional={
            "retry_policy": _retries,
            "timeout_policy": _timeouts,
            "max_reclaim_count": st.integers(0, 2),
            "max_replay_count": st.integers(0, 2),
            "fairness_key": st.sampled_from(["tenant-a", "tenant-b"]),
            "budget_ids": st.just([BUDGET]),
            "concurrency_key": st.sampled_from(["one", "two"]),
            "routing_requirements": st.fixed_dictionaries({"required_capabilities": _capabilities}),
            "retention_ms": st.sampled_from([0, 1_000]),
            "dedup_window_ms": st.sampled_from([0, 1_000]),
        },
    ),
)
tags: Final = st.dictionaries(
    st.sampled_from(["app.team", "app.case", "app.other"]), st.sampled_from(["red", "blue"])
)
tag_writes: Final = st.one_of(tags, st.just({"nodot": "x"}))

KINDS: Final = ("work", "summarize", "translate")

# A submission's fields; delay and deadline are offsets from now.
submissions: Final = st.fixed_dictionaries(
    {
        "namespace": namespaces,
        "lane": lanes,
        "policy": policies,
        "delay": st.one_of(st.none(), st.none(), offsets),
        "deadline": st.one_of(st.none(), st.none(), offsets),
    },
    optional={
        "kind": st.sampled_from(KINDS),
        "creator": st.just("ada"),
        "input": bodies,
        "payload_encoding": st.just("json"),
        "priority": st.sampled_from([-1, 0, 5, 9_000, 9_001]),
        "idempotency_key": st.sampled_from(["key-1", "key-2"]),
        "tags": tags,
    },
)

# Of so many as are asked for by name, and of more.
_kinds: Final = st.sampled_from([None, ("work",), KINDS[:2], (*KINDS, "a", "b", "c"), ("other",)])
_offered: Final = st.sampled_from([(), ("gpu",), ("cuda", "gpu")])


def _order(worker: tuple[str, str], **fields: Any) -> ClaimOrder:
    return ClaimOrder(worker_id=worker[0], worker_instance_id=worker[1], **fields)


orders: Final = st.builds(
    _order,
    workers,
    namespace=namespaces,
    lanes=st.sampled_from([LANES, LANES, ("gpu",), ("gpu", "default")]),
    capabilities=_offered,
    kinds=_kinds,
    n=st.integers(1, 3),
    lease_ms=lease_lengths,
    payload=st.booleans(),
    upstreams=st.booleans(),
)


def request_of(order: ClaimOrder, mint: Callable[[], str]) -> ClaimRequest:
    """The order as a store is asked, without a look at what lanes know of their sets."""
    offered = set(order.capabilities)
    required: list[tuple[str, ...]] = [(), ("gpu",), ("cuda", "gpu")]
    return ClaimRequest(
        worker_id=order.worker_id,
        worker_instance_id=order.worker_instance_id,
        namespace=order.namespace,
        lanes=order.lanes,
        sets=tuple(set_id(tokens) for tokens in required if offered.issuperset(tokens)),
        kinds=None if order.kinds is None else frozenset(map(kind_id, order.kinds)),
        ids=tuple((mint(), mint()) for _ in range(order.n)),
        lease_for=order.lease_ms,
        payload=order.payload,
        upstreams=order.upstreams,
    )


def _grant_order(worker: tuple[str, str], **fields: Any) -> GrantOrder:
    return GrantOrder(worker_id=worker[0], worker_instance_id=worker[1], **fields)


grant_orders: Final = st.builds(
    _grant_order,
    workers,
    grant_ttl_ms=st.sampled_from([1, 2_000, 60_000, 60_000]),
    worker_capabilities=_offered,
    capability_hash=st.sampled_from(["", "abc"]),
)


def _registration(worker: tuple[str, str], **fields: Any) -> Registration:
    return Registration(worker_id=worker[0], worker_instance_id=worker[1], **fields)


registrations: Final = st.builds(
    _registration,
    st.sampled_from([*WORKERS, ("crew", "pool-1")]),
    lanes=st.frozensets(lanes, max_size=2),
    capabilities=_offered.map(frozenset),
    ttl_ms=st.sampled_from([1, 1_000, 60_000]),
    namespace=namespaces,
)

failures: Final = st.builds(
    Failure,
    st.sampled_from(["it broke", ""]),
    st.sampled_from(["transient", "permanent", "timeout"]),
    st.sampled_from([None, None, True, False]),
)
sources: Final = st.sampled_from(
    ["", "operator_override", "flow_cascade", "lease_holder", "worker", "dashboard"]
)
blocking: Final = st.sampled_from(
    [
        "waiting_for_budget",
        "waiting_for_quota",
        "waiting_for_capable_worker",
        "paused_by_operator",
        "paused_by_policy",
    ]
)
looks: Final = st.one_of(st.none(), st.sampled_from([0, 1_000]))
revocations: Final = st.one_of(
    st.none(),
    st.builds(Revocation, reason=st.just("why not"), worker_instance_id=st.just("pool-1")),
    st.builds(Revocation, expected_lease_id=st.just(BUDGET)),
)


def _frame(kind: str, payload: bytes, seq: int, mode: Any) -> Frame:
    return Frame(frame_type=kind, payload=payload, seq=seq, mode=mode)


frames: Final = st.lists(
    st.builds(
        _frame,
        st.just("token"),
        bodies,
        st.integers(0, 3),
        st.sampled_from(["durable", "durable", "best_effort"]),
    ),
    min_size=1,
    max_size=3,
)
journal_entries: Final = st.lists(
    st.builds(
        JournalEntry,
        st.sampled_from(["charge", "mail"]),
        st.integers(0, 1),
        st.sampled_from(["d1", "d1", "d2"]),
        bodies,
    ),
    min_size=1,
    max_size=2,
)

filters: Final = st.builds(
    Filter,
    namespace=namespaces,
    lane=st.sampled_from(["", *LANES]),
    state=st.sampled_from(["", "waiting", "active", "completed", "cancelled"]),
    worker_instance_id=st.sampled_from(["", "", "pool-1"]),
    tag=st.sampled_from([None, None, ("app.team", "red"), ("app.other", "red")]),
    partition=st.sampled_from([None, None, 0, 1]),
)
list_orders: st.SearchStrategy[Order] = st.sampled_from(["created", "created_newest", "id", "due"])


HOWS: Final = (
    *["as claimed"] * 6,
    *["from elsewhere"] * 3,
    "with another epoch",
    "with another lease",
    "with half a fence",
    "without a fence",
    "as an operator",
)
hows: Final = st.sampled_from(HOWS)


def as_sent(held: LeaseProof, how: str) -> LeaseProof:
    """A holding as a worker presents it: honestly, from another process, or wrongly."""
    changes: dict[str, dict[str, Any]] = {
        "as claimed": {},
        "from elsewhere": {"record": None},
        "with another epoch": {"record": None, "lease_epoch": held.lease_epoch + 1},
        "with another lease": {"record": None, "lease_id": BUDGET},
        "with half a fence": {"record": None, "attempt_id": ""},
        "without a fence": {"record": None, "lease_id": "", "lease_epoch": 0, "attempt_id": ""},
        "as an operator": {
            "record": None,
            "lease_id": "",
            "lease_epoch": 0,
            "attempt_id": "",
            "source": "operator_override",
        },
    }
    return msgspec.structs.replace(held, **changes[how])
