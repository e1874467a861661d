"""Limits under random use: budgets counted once more by brute force, quotas and keys never passed.

Work is claimed only the ordinary way here: what an operator takes by name passes limits on purpose.
"""

from collections import Counter
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from flowfabric.backend.types import Filter
from flowfabric.core.limits.gates import key_gate, quota_gate
from flowfabric.core.record import Record
from flowfabric.core.rules.attempts import Failure
from flowfabric.engine.attempts.finishing import Finish
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.operations.budgets import NewBudget, NewQuota, NewReservation
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import ClaimOrder, Complete
from tests.model import bookkeeping
from tests.model.bookkeeping import DIMENSIONS, Books, Level
from tests.model.comparing import walk
from tests.model.sides import COUNTS, Side, agree
from tests.model.world import Open, World

# All in one partition of two, as a tree must be.
ROOT: Final = "00000000-0000-0000-0000-000000000000"
LEFT: Final = "550e8400-e29b-41d4-a716-446655440000"
RIGHT: Final = "00000000-0000-4000-8000-000000000003"
BUDGETS: Final = {
    ROOT: Level("", {"tokens": 20, "cost": 0}, 7_000),
    LEFT: Level(ROOT, {"tokens": 12, "cost": 9}, 0),
    RIGHT: Level(ROOT, {"tokens": 0, "cost": 15}, 20_000),
}
RATED: Final = "00000000-0000-4000-8000-00000000000a"
CAPPED: Final = "00000000-0000-4000-8000-00000000000b"
QUOTAS: Final = {
    RATED: NewQuota(quota_policy_id=RATED, window_seconds=4, max_requests_per_window=2),
    CAPPED: NewQuota(
        quota_policy_id=CAPPED, window_seconds=9, max_requests_per_window=5, max_concurrent=2
    ),
}
KEYS: Final = {"one": 1, "two": 2}
GATES: Final = (*map(quota_gate, QUOTAS), *(key_gate("default", key) for key in KEYS))

_budgets = st.sampled_from([*BUDGETS])
_amounts = st.dictionaries(st.sampled_from(DIMENSIONS), st.integers(0, 8), min_size=1)
_names = st.sampled_from(["r1", "r2", "r3"])
_keys = st.sampled_from(["", "", "d1", "d2"])
_leases = st.sampled_from([1_000, 10_000])
_jumps = st.sampled_from([1, 500, 1_000, 3_999, 4_000, 5_000, 7_000, 11_000, 16_000])
_policies: Final[st.SearchStrategy[dict[str, Any]]] = st.fixed_dictionaries(
    {},
    optional={
        "budget_ids": st.lists(_budgets, max_size=2, unique=True),
        "quota_ids": st.lists(st.sampled_from([*QUOTAS]), max_size=2, unique=True),
        "concurrency_key": st.sampled_from([*KEYS]),
        "retry_policy": st.just({"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 500}}),
    },
)
_some_policies = st.lists(_policies, min_size=1, max_size=3)
_SPENDING: Final = (
    "spend",
    "spend",
    "spend",
    "release",
    "release",
    "reset",
    "reserve",
    "reserve",
    "commit",
    "commit",
    "cancel_hold",
)
_WORKING: Final = ("submit", "submit", "claim", "claim", "claim", "work", "work", "work", "cancel")
_DOINGS: Final = ("complete", "fail", "delay", "hand back", "renew", "die", "next")
_FAILURE: Final = Failure("flaky", "transient")


class LimitsModel(World):
    """Spenders, workers that may die, and time."""

    def __init__(self, open_store: Open) -> None:
        super().__init__(open_store)
        self.books = Books()

    @initialize(data=st.data())
    def define(self, data: st.DataObject) -> None:
        for budget_id, level in BUDGETS.items():
            assert COUNTS.of_budget(budget_id) == COUNTS.of_budget(ROOT)
            self.books.define(budget_id, level, self.clock())
            new = NewBudget(
                budget_id=budget_id,
                parent_id=level.parent,
                reset_interval_ms=level.interval_ms,
                dimensions=DIMENSIONS,
                hard_limits=[level.hard[name] for name in DIMENSIONS],
                soft_limits=[0] * len(DIMENSIONS),
            )
            self.both(lambda side, new=new: side.engine.budgets.create_budget(new))  # type: ignore[misc]
        for quota in QUOTAS.values():
            self.both(lambda side, quota=quota: side.engine.quotas.create_quota_policy(quota))  # type: ignore[misc]
        for act in ("submit", "claim"):
            getattr(self, f"_{act}")(data)

    @rule(acts=st.lists(st.sampled_from(_SPENDING), min_size=1, max_size=5), data=st.data())
    def spenders_act(self, acts: list[str], data: st.DataObject) -> None:
        for act in acts:
            getattr(self, f"_{act}")(data)

    @rule(acts=st.lists(st.sampled_from(_WORKING), min_size=1, max_size=5), data=st.data())
    def workers_act(self, acts: list[str], data: st.DataObject) -> None:
        for act in acts:
            getattr(self, f"_{act}")(data)

    # ---- spending

    def _spend(self, data: st.DataObject) -> None:
        budget, amounts, key = data.draw(st.tuples(_budgets, _amounts, _keys))
        execution = self.pick(data, self.executions) or ""
        expected = self.books.spend(budget, amounts, key, execution, self.clock())
        if execution:
            answer = self.both(
                lambda side: side.engine.budgets.record_spend(budget, execution, amounts, key)
            )
        else:
            names, deltas = list(amounts), list(amounts.values())
            answer = self.both(
                lambda side: side.engine.budgets.report_usage_and_check(budget, names, deltas, key)
            )
        assert answer.value is not None
        agree("outcome", expected, answer.value.outcome)

    def _release(self, data: st.DataObject) -> None:
        budget = data.draw(_budgets)
        execution = self.pick(data, self.executions)
        if execution is not None:
            self.books.release(budget, execution)
            self.both(lambda side: side.engine.budgets.release_budget(budget, execution))

    def _reset(self, data: st.DataObject) -> None:
        budget = data.draw(_budgets)
        self.books.reset(budget, self.clock())
        self.both(lambda side: side.engine.budgets.reset_budget(budget))

    def _reserve(self, data: st.DataObject) -> None:
        budget, name, amounts, ttl = data.draw(st.tuples(_budgets, _names, _amounts, _jumps))
        execution = self.pick(data, self.executions) or ""
        held = bookkeeping.LeaseProof(budget, amounts, self.clock() + ttl, execution)
        expected = self.books.reserve(budget, name, held, self.clock())
        asked = NewReservation(
            reservation_id=name,
            dimensions=amounts,
            ttl_ms=ttl,
            execution_id=execution,
        )
        answer = self.both(lambda side: side.engine.reservations.reserve(budget, asked)).value
        assert answer is not None
        agree("outcome", expected, answer.outcome)

    def _commit(self, data: st.DataObject) -> None:
        budget, name, amounts = data.draw(st.tuples(_budgets, _names, _amounts))
        expected = self.books.commit(budget, name, amounts, self.clock())
        answer = self.both(
            lambda side: side.engine.reservations.commit(budget, name, amounts)
        ).value
        assert answer is not None
        agree("outcome", expected, answer.outcome)

    def _cancel_hold(self, data: st.DataObject) -> None:
        budget, name = data.draw(st.tuples(_budgets, _names))
        expected = self.books.cancel(budget, name, self.clock())
        answer = self.both(lambda side: side.engine.reservations.cancel(budget, name)).value
        assert answer is not None
        agree("outcome", expected, answer.outcome)

    # ---- working

    def _submit(self, data: st.DataObject) -> None:
        policies, priority = data.draw(st.tuples(_some_policies, st.integers(0, 2)))
        for policy in policies:
            key = policy.get("concurrency_key", "")
            limit = {"concurrency_limit": KEYS[key]} if key else {}
            submission = Submission(kind="work", policy=policy | limit, priority=priority)
            made = self.both(lambda side, new=submission: side.engine.executions.create(new))  # type: ignore[misc]
            assert made.value is not None
            self.executions.append(made.value.execution_id)

    def _claim(self, data: st.DataObject) -> None:
        order = _order(data.draw(st.integers(1, 4)), data.draw(_leases))
        self.hold(self.both(lambda side: side.engine.claims.claim(order)).value)

    def _work(self, data: st.DataObject) -> None:
        act = data.draw(st.sampled_from(_DOINGS))
        held = self.pick(data, self.holdings)
        if held is None:
            return
        match act:
            case "complete":
                self.both(lambda side: side.engine.outcomes.complete(held))
            case "fail":
                self.both(lambda side: side.engine.outcomes.fail(held, _FAILURE))
            case "delay" | "hand back":
                wait = 0 if act == "hand back" else 2_000
                self.both(lambda side: side.engine.outcomes.delay(held, for_ms=wait))
            case "renew":
                ttl = data.draw(_leases)
                self.both(lambda side: side.engine.leases.renew(held, ttl))
            case "next":
                self._finish_and_claim(held, data.draw(_leases))
            case _:
                self.holdings.remove(held)

    def _finish_and_claim(self, held: LeaseProof, lease_ms: int) -> None:
        finish, order = Finish(held, Complete()), _order(2, lease_ms)

        async def call(side: Side) -> object:
            answer = await side.engine.finishing.finish_and_claim([finish], order)
            assert answer.fault is None
            return [str(one) for one in answer.done], answer.claimed

        found = self.both(call).value
        assert isinstance(found, tuple)
        self.hold(found[1])

    def _cancel(self, data: st.DataObject) -> None:
        execution = self.pick(data, self.executions)
        if execution is not None:
            held = LeaseProof(execution)
            self.both(lambda side: side.engine.outcomes.cancel(held, "enough"))

    @rule(ms=_jumps)
    def time_passes(self, ms: int) -> None:
        self.clock.advance(ms)
        self.books.time_passes(self.clock())
        self.both(_sweep)

    # ---- what must hold

    @invariant()
    def budgets_are_what_the_books_say(self) -> None:
        for name in self.books.levels:
            seen = self.both(lambda side, name=name: side.engine.budgets.get_budget_status(name))  # type: ignore[misc]
            assert seen.value is not None
            for dimension in DIMENSIONS:
                used = self.books.used(name, dimension)
                reserved = self.books.reserved(name, dimension, self.clock())
                agree(f"{name} {dimension}", used, seen.value.usage.get(dimension, 0))
                agree(f"{name} {dimension}", reserved, seen.value.reserved.get(dimension, 0))
                limit = self.books.levels[name].hard.get(dimension, 0)
                assert not limit or used + reserved <= limit

    @invariant()
    def no_more_run_than_may(self) -> None:
        running = self._running()
        capped = sum(CAPPED in record.quota_ids for record in running)
        assert capped <= QUOTAS[CAPPED].max_concurrent
        keys = Counter(record.concurrency_key for record in running)
        for key, limit in KEYS.items():
            assert keys[key] <= limit

    @invariant()
    def gates_agree(self) -> None:
        self.both(lambda side: side.backend.gates(GATES))

    def teardown(self) -> None:
        try:
            self._everything_runs_in_the_end()
        finally:
            super().teardown()

    def _everything_runs_in_the_end(self) -> None:
        """All workers die; with fresh budgets everything is done by another, and no slot stays."""
        for _ in range(80):
            self.clock.advance(5_000)
            for budget in self.books.levels:
                self.both(lambda side, budget=budget: side.engine.budgets.reset_budget(budget))  # type: ignore[misc]
            self.both(_sweep)
            self.both(_drain)
            if not self._live():
                break
        assert not self._live()
        self.clock.advance(60_000)
        gates = self.both(lambda side: side.backend.gates(GATES)).value or []
        assert all(seen is None or not seen.gate.slots for seen in gates)

    def _records(self) -> list[Record]:
        return self.run(walk(self.pair.reference, Filter(namespace="default")))

    def _running(self) -> list[Record]:
        now = self.clock()
        return [one for one in self._records() if one.state == "active" and one.lease_until > now]

    def _live(self) -> list[str]:
        return [one.execution_id for one in self._records() if not one.completed_at]


def _order(n: int, lease_ms: int) -> ClaimOrder:
    return ClaimOrder(
        worker_id="w", worker_instance_id="w-1", lanes=("default",), n=n, lease_ms=lease_ms
    )


async def _sweep(side: Side) -> object:
    return (await side.sweep.visit()).counts


async def _drain(side: Side) -> int:
    done = 0
    while claimed := await side.engine.claims.claim(_order(9, 1_000)):
        for one in claimed:
            await side.engine.outcomes.complete(one.proof)
            done += 1
    return done


def limits_model_of(open_store: Open) -> type[LimitsModel]:
    class LimitsOfOneStore(LimitsModel):
        def __init__(self) -> None:
            super().__init__(open_store)

    return LimitsOfOneStore
