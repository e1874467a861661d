"""Records, plans, flows and budgets drawn from a seed, with few values for each field.

Nothing here asks `core` for anything that Lua mirrors: what goes in is the same whatever comes out.
"""

from collections.abc import Sequence
from random import Random
from typing import Any, Final, TypeVar, get_args

from flowfabric.core.graph import CancelPolicy, Edge, Flow, Group, Unsettled
from flowfabric.core.lease import GrantTerms, LeaseTerms
from flowfabric.core.limits.budgets import Budget, Ledger, Share
from flowfabric.core.limits.gates import Quota, Waiter
from flowfabric.core.new_execution import NewExecution
from flowfabric.core.plan import EndAttempt, Event, Fence, Guard, PauseAttempt, Plan, Timer
from flowfabric.core.record import Attempt, Record
from flowfabric.core.states import AttemptState, Next, State

T = TypeVar("T")

NOW: Final = 1_700_000_000_000
_STATES: Final[tuple[State, ...]] = get_args(State)
_REASONS: Final = ("", "dependencies", "delay", "budget", "operator", "lease_expired")
_NEXT: Final[tuple[Next, ...]] = get_args(Next)
_WORKERS: Final = ("pool", "other")
_IDS: Final = ("one", "two")
_SIGNALS: Final = ("", "susp-1", "worker_delay", "waiting_children", "nondeterminism")
_DIMENSIONS: Final = ("a", "b", "ü")
_UUID: Final = "{:08x}-0000-4000-8000-000000000000"
_PUBLIC: Final = ("waiting", "delayed", "rate_limited", "waiting_children", "active", "suspended")
_ENDS: Final = ("completed", "failed", "cancelled", "expired", "skipped")


class Inputs:
    """Draws from one seed."""

    def __init__(self, seed: int) -> None:
        self._luck = Random(seed)

    def one(self, some: Sequence[T]) -> T:
        return self._luck.choice(some)

    def some(self, values: Sequence[T]) -> list[T]:
        return self._luck.sample(values, self._luck.randint(0, len(values)))

    def chance(self, part: float) -> bool:
        return self._luck.random() < part

    def instant(self) -> int:
        """None, long ago, just now, or ahead."""
        return self.one((0, 0, NOW - 60_000, NOW - 1, NOW, NOW + 1, NOW + 60_000))

    def length(self) -> int:
        return self.one((0, 1, 500, 30_000))

    def uuid(self, most: int = 4) -> str:
        return _UUID.format(self._luck.randrange(most))

    def execution_id(self) -> str:
        return f"{{fp:{self._luck.randrange(3)}}}:{self.uuid(1_000_000)}"

    # ---- records

    def attempt(self) -> Attempt:
        states: tuple[AttemptState, ...] = get_args(AttemptState)
        return Attempt(
            index=self.one((0, 1, 3)),
            attempt_id=self.one(_IDS),
            type=self.one(("initial", "retry", "reclaim", "replay")),
            state=self.one(states),
            started_at=NOW - 5_000,
            lease_id=self.one(_IDS),
            lease_epoch=self.one((1, 2)),
            worker_id=self.one(_WORKERS),
            worker_instance_id=self.one(_WORKERS),
            acquired_reason=self.one(("", "why")),
            failure_reason=self.one(("", "was wrong")),
            failure_category=self.one(("", "timeout")),
            suspended_at=self.one((0, NOW - 3_000)),
            suspension_id=self.one(_SIGNALS),
            closed_at=self.one((0, NOW - 100)),
            closed_reason=self.one(("", "lease_expired")),
            first_lease_id=self.one(("", "first")),
            first_lease_epoch=self.one((0, 1)),
            first_worker_id=self.one(("", "pool")),
            first_instance_id=self.one(("", "pool-1")),
        )

    def record(self, *states: State, flow_id: str | None = None) -> Record:
        priority, shift = self.one((0, 5, 9000)), self.one((0, 2_000))
        created_at = NOW - self.one((0, 1, 10_000))
        attempt = self.attempt() if self.chance(0.6) else None
        return Record(
            execution_id=self.execution_id(),
            namespace=self.one(("default", "other")),
            lane=self.one(("main", "gpu")),
            kind="work",
            created_at=created_at,
            flow_id=self.one(("", self.uuid())) if flow_id is None else flow_id,
            round=self.one((0, 0, 2)),
            req_set=self.one(("-", "gpu", "-.0123456789abcdef", "gpu.0123456789abcdef")),
            gated=self.chance(0.2),
            attempt_timeout_ms=self.length(),
            max_reclaim_count=self.one((0, 2, 100)),
            retention_ms=self.one((0, 500, 1_000, 86_400_000)),
            tags=self.one(({}, {"app.team": "red"}, {"app.team": "blue", "free": "text"})),
            priority=priority,
            rank_shift=shift,
            rank=created_at + shift - priority * 10**12,
            state=self.one(states or _STATES),
            reason=self.one(_REASONS),
            next=self.one(_NEXT[1:]),
            detail=self.one(("", "told")),
            version=self.one((1, 7)),
            moved_at=NOW - 10,
            changed_at=NOW - 10,
            started_at=self.one((0, NOW - 5_000)),
            completed_at=self.one((0, NOW - 20)),
            purge_at=self.instant(),
            attempt_count=self.one((0, 1, 4)),
            retry_count=self.one((0, 2)),
            reclaim_count=self.one((0, 2)),
            replay_count=self.one((0, 1)),
            attempt_index=attempt.index if attempt else self.one((0, 3)),
            attempt_id=self.one(("", *_IDS)),
            attempt_type=self.one(("", "initial", "retry")),
            attempt_left_ms=self.length(),
            attempt=attempt,
            lease_until=self.instant(),
            attempt_until=self.instant(),
            wake_at=self.instant(),
            deadline_at=self.instant(),
            pending_until=self.instant(),
            grant_until=self.instant(),
            due_at=self.instant(),
            lease_id=self.one(("", *_IDS)),
            lease_epoch=self.one((0, 1, 2)),
            lease_acquired_at=NOW - 5_000,
            lease_renewed_at=NOW - 4_000,
            lease_ttl_ms=30_000,
            worker_id=self.one(_WORKERS),
            worker_instance_id=self.one(_WORKERS),
            lost_at=self.one((0, NOW - 50)),
            revoke_reason=self.one(("", "gone")),
            grant_id=self.one(("", *_IDS)),
            grant_kind=self.one(("", "claim")),
            grant_worker=self.one(("", *_WORKERS)),
            grant_instance=self.one(("", *_WORKERS)),
            grant_note=self.one(("", "noted")),
            suspension_id=self.one(_SIGNALS[:2]),
            waitpoint_id=self.one(("", "wp-1")),
            retry_reason=self.one(("", "retried")),
            replay_reason=self.one(("", "replayed")),
            replay_requested_by=self.one(("", "me")),
            previous_attempt=self.one((-1, 0, 2)),
            op_id=self.one(("", "one:op")),
            op_state=self.one(("", "waiting")),
            op_wake_at=self.instant(),
        )

    def new_execution(self) -> NewExecution:
        fresh = Record(
            execution_id="",
            namespace=self.one(("default", "other")),
            lane=self.one(("main", "gpu")),
            kind="work",
            flow_id=self.one(("", self.uuid())),
            fairness_key=self.one(("", "tenant")),
            idempotency_key=self.one(("", "key")),
            priority=self.one((0, 5, 9000)),
            tags=self.one(({}, {"app.team": "red"})),
            attempt_timeout_ms=self.length(),
        )
        return NewExecution(
            execution_id=self.execution_id(),
            record=fresh,
            dedup_window_ms=self.one((0, 1, 5_000)),
            delay_until=self.instant(),
            deadline_at=self.instant(),
            deadline_in=self.length(),
            has_dependencies=self.chance(0.3),
        )

    def lease_terms(self) -> LeaseTerms:
        return LeaseTerms("pool", "pool-9", "new-lease", "new-attempt", 30_000, self.one(("", "x")))

    def grant_terms(self) -> GrantTerms:
        return GrantTerms("pool", "pool-9", "new-grant", self.one((1, 2_000)))

    # ---- plans

    def event(self) -> Event:
        kind = self.one(("released", "acquired", "expired", "signal", "revoked"))
        families = self.one((("lease",), ("completion", "lease"), ("signal",), ("lease", "flow")))
        reasons = ("", "completed", "paused", "expired:late", "claim_resumed", "cancelled")
        reason = self.one(reasons)
        details = {"reason": reason} if reason else {}
        return Event(kind, families, {"outcome": "x", **details})  # type: ignore[arg-type]

    def _fence(self, record: Record) -> Fence:
        fence = Fence(record.lease_id, record.lease_epoch, record.attempt_id)
        other = Fence(self.one(_IDS), self.one((1, 2)), self.one(_IDS))
        return fence if self.chance(0.7) else other

    def guard(self, record: Record) -> Guard:
        states: set[str] = {*self.some(_STATES)}
        if self.chance(0.7):
            states.add(record.state)
        narrowed = f"{record.state}/{self.one((record.reason, 'other'))}"
        return Guard(
            frozenset(states or {narrowed}),
            self._fence(record) if self.chance(0.5) else None,
            version=self.one((0, 0, record.version, 99)),
            suspension_id=self.one(("", "", "susp-1")),
            grant_id=self.one(("", "", *_IDS)),
            mail_count=self.one((None, None, None, 0, record.mail_count)),
        )

    def _changes(self) -> dict[str, Any]:
        possible = {
            "state": self.one(_STATES),
            "reason": self.one(_REASONS),
            "detail": "set",
            "next": self.one(_NEXT),
            "priority": self.one((0, 77)),
            "rank_shift": self.one((0, 1_234)),
            "attempt_id": "",
            "retry_count": 5,
            "retry_reason": "again",
            "result_encoding": "json",
            "wake_at": 0,
            "suspension_id": self.one(_SIGNALS),
            "tags": self.one(({}, {"app.team": "green"})),
        }
        names = self.some([*possible])
        return {name: possible[name] for name in names}

    def _timer(self) -> Timer | None:
        if self.chance(0.5):
            return None
        names = ("lease_for", "attempt_for", "wake_in", "deadline_in", "pending_in", "grant_for")
        lengths = {name: self.length() for name in self.some(names)[:3]}
        named = {
            name: self.instant() for name in self.some(("wake_at", "deadline_at", "pending_at"))
        }
        return Timer(**lengths, **named)

    def plan(self, record: Record) -> Plan:
        guard = self.guard(record)
        change = self.one(
            (
                None,
                EndAttempt("ended_failure", self.one(("", "failed")), self.one(("", "timeout"))),
                EndAttempt("ended_success"),
                PauseAttempt(self.one(_SIGNALS)),
            )
        )
        return Plan(
            target=record.execution_id,
            rule="note",
            guard=guard,
            op=self.one(("", "op")) if guard.fence else "",
            set=self._changes(),
            stamp=self.one(((), ("lost_at",), ("progress_at", "started_at"))),
            timer=self._timer(),
            attempt=change,
            close_stream=self.one(("", "done")),
            event=self.event() if self.chance(0.6) else None,
        )

    # ---- graphs

    def flow(self, flow_id: str | None = None) -> Flow:
        names = self.some((*_PUBLIC, *_ENDS)) if self.chance(0.6) else self.some(_ENDS)
        counts = {name: self.one((1, 3)) for name in names}
        policies: tuple[CancelPolicy, ...] = get_args(CancelPolicy)
        return Flow(
            flow_id=flow_id or self.uuid(),
            namespace=self.one(("default", "other")),
            kind="graph",
            graph_revision=self.one((0, 3)),
            version=self.one((1, 9)),
            node_count=self.one((sum(counts.values()), sum(counts.values()), 0)),
            edge_count=self.one((0, 4)),
            counts=counts,
            child_counts=self.one(({}, dict.fromkeys(counts, 1))),
            purged_count=self.one((0, 0, 1, 50)),
            cancelled_at=self.one((0, NOW - 5)),
            cancel_reason="stop",
            cancel_policy=self.one(policies),
            unsettled=self.one(
                (
                    (),
                    (Unsettled("cancel_siblings", "x", reason="why"),),
                    (Unsettled("cancel_children", "x", reason="why", within="0"),),
                )
            ),
            incomplete=self.chance(0.3),
            submit_until=self.instant(),
            due_at=self.instant(),
            finished_at=self.one((0, 0, NOW - 30)),
            retention_ms=self.one((0, 700)),
            purge_at=self.instant(),
            created_at=NOW - 100,
            changed_at=NOW - 50,
            tags=self.one(({}, {"app.case": "7", "free": "x"})),
        )

    def group(self) -> Group:
        counts = [self.one((0, 0, 1, 2)) for _ in range(3)]
        return Group(
            target="target",
            flow_id=self.uuid(),
            policy=self.one(("all_of", "any_of", "quorum")),
            k=self.one((1, 2, 3)),
            n=self.one((sum(counts), sum(counts) + 1, sum(counts) + 3)),
            staged=self.one((0, 0, 1)),
            succeeded=counts[0],
            failed=counts[1],
            skipped=counts[2],
            state=self.one(("pending", "satisfied", "impossible")),
        )

    def edge(self) -> Edge:
        return Edge(
            edge_id=self.uuid(),
            flow_id=self.uuid(),
            source="source",
            target="target",
            kind=self.one(("success_only", "finished")),
            state=self.one(("staged", "open", "satisfied", "impossible")),
            past_ends=self.one((0, 1, 2)),
        )

    def outcome(self) -> str:
        return self.one(("success", "failed", "cancelled", "expired", "skipped"))

    # ---- limits

    def amounts(self) -> dict[str, int]:
        most = (0, 1, 2, 3, 5, 8, *((2**53 - 1,) if self.chance(0.1) else ()))
        return {name: self.one(most) for name in self.some(_DIMENSIONS)}

    def chain(self) -> tuple[Budget, ...]:
        ids = [_UUID.format(number) for number in range(self._luck.randint(1, 3))]
        return tuple(self._budget(own, tuple(ids[place + 1 :])) for place, own in enumerate(ids))

    def _budget(self, own: str, ancestors: tuple[str, ...]) -> Budget:
        interval = self.one((0, 1, 7_000))
        return Budget(
            budget_id=own,
            enforcement_mode=self.one(("strict", "strict", "advisory")),
            on_hard_limit=self.one(("reject", "fail")),
            on_soft_limit=self.one(("warn", "allow")),
            reset_interval_ms=interval,
            hard_limits={name: self.one((0, 1, 3, 5, 6, 8)) for name in _DIMENSIONS[:2]},
            soft_limits={"a": self.one((0, 1, 2, 4))},
            ancestors=ancestors,
            used={name: self.one((0, 1, 3, 5)) for name in self.some(_DIMENSIONS[:2])},
            reserved={name: self.one((1, 2, 4)) for name in self.some(_DIMENSIONS[:2])},
            breach_count=self.one((0, 2)),
            soft_breach_count=self.one((0, 2)),
            reset_count=self.one((0, 1)),
            last_breach_at=self.one((0, NOW - 7)),
            last_breach_dim=self.one(("", "a")),
            next_reset_at=self.one((1, self.instant(), self.instant())) if interval else 0,
        )

    def ledger(self, chain: tuple[Budget, ...]) -> Ledger:
        return Ledger(
            tuple(
                Share(level.budget_id, self.one((level.reset_count, 5)), {"a": self.one((1, 2, 9))})
                for level in chain
                if self.chance(0.8)
            )
        )

    def quota(self) -> Quota | None:
        if self.chance(0.3):
            return None
        return Quota(
            quota_policy_id=self.uuid(),
            window_seconds=self.one((1, 4)),
            max_requests_per_window=self.one((0, 1, 3)),
            max_concurrent=self.one((0, 1, 3)),
        )

    def waiter(self, rank: int = 1) -> Waiter:
        return Waiter(
            rank=rank,
            until=self.instant(),
            needs_entry=self.chance(0.7),
            cap=self.one((1, 3)),
            grant_id=self.one(("", "grant")),
        )
