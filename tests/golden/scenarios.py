"""Golden vectors of whole mechanisms: days of random calls from a seed, and all they came to.

The reference in memory runs `core` and tells what is expected; Valkey runs the Lua functions. Steps
are made small, so that few calls reach every bound."""

from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, TypeVar

from flowfabric.backend.valkey.library import CPU_LIMITS
from flowfabric.core.documents import SUSPENSION
from flowfabric.core.graph import GraphEdit
from flowfabric.core.limits.asks import DefineQuota
from flowfabric.core.limits.gates import Quota
from flowfabric.core.plan import Fence, Guard, PauseAttempt, Plan
from flowfabric.core.rules.attempts import Failure, complete, fail
from flowfabric.core.rules.flows import cancel_flow
from flowfabric.core.states import FINAL, STATES
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.operations.executions import Submission
from flowfabric.operations.flows import GraphEdge, GraphGroup, GraphNode, GraphSubmission
from flowfabric.operations.workers import ClaimOrder
from tests.clock import VirtualClock
from tests.golden import mechanisms, walks
from tests.golden.constants import patched
from tests.golden.mechanisms import SMALL_OUTPUT, Play, Trace
from tests.model.comparing import Known, picture
from tests.model.limit_calls import LimitCalls
from tests.model.sides import COUNTS, Side, answer_of
from tests.model.test_limit_calls import drop_what_ended, made
from tests.model.world import told
from tests.stores import stores_of

T = TypeVar("T")
_OPEN: Final = stores_of(COUNTS)
_LIFTED_S: Final = 1e6
# More than any flow here needs.
_MOST_STEPS: Final = 40
_ACTS: Final = (
    *("submit", "submit", "graph", "claim", "claim", "claim", "finish", "finish", "finish"),
    *("finish", "hand_back", "park", "cancel", "replay", "replay_flow", "cancel_flow", "wait"),
    *("wait", "purge", "suspend", "resume", "resume", "note", "note", "stand_by"),
)
_GRAPH_ACTS: Final = (
    *("graph", "claim", "claim", "claim", "end", "end", "end", "end", "end", "end", "end"),
    *(
        "finish",
        "park",
        "cancel",
        "replay",
        "replay",
        "replay_flow",
        "wait",
        "note",
        "cancel_in_steps",
    ),
)
_POLICIES: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"fairness_key": "tenant", "dedup_window_ms": 1_000},
    {"dedup_window_ms": 0},
    {"dedup_window_ms": 1},
    {"retry_policy": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 500}}},
    {"timeout_policy": {"attempt_timeout_ms": 1_500, "execution_deadline_ms": 120_000}},
    {"max_reclaim_count": 0, "retention_ms": 0},
    {"concurrency_key": "one", "retention_ms": 1_000},
)


class Day:
    """One store and what is known of it; every choice is drawn from a seed."""

    def __init__(
        self, side: Side, clock: VirtualClock, luck: Random, acts: Sequence[str] = _ACTS
    ) -> None:
        self._side = side
        self._clock = clock
        self._luck = luck
        self._acts = acts
        self.known = Known()
        self._held: list[LeaseProof] = []
        self._executions: list[str] = []
        self.trace: Trace = []

    async def spend(self, acts: int) -> Trace:
        for number in range(acts):
            self._side.reseed(number)
            act = self._luck.choice(self._acts) if number > 1 else ("graph", "claim")[number]
            await getattr(self, f"_{act}")()
            await self._side.rest()
            if number % 4 == 3:
                self.trace.append(("picture", await picture(self._side, self.known)))
        self.trace.append(("verify", await self._side.backend.verify()))
        self.trace.append(("siblings", dict(self._side.backend.counters().siblings)))
        return self.trace

    async def _do(self, what: str, call: Awaitable[T]) -> T | None:
        answer = await answer_of(call)
        self.trace.append((what, answer))
        return answer.value

    def _one(self, some: Sequence[T]) -> T | None:
        return self._luck.choice(some) if some else None

    async def _submit(self) -> None:
        luck = self._luck
        delay, deadline = luck.choice((None, None, 700)), luck.choice((None, None, None, 2_000))
        flow_id = luck.choice(("", *sorted(self.known.flows)))
        asked = Submission(
            kind="work",
            lane=luck.choice(("default", "gpu")),
            input=luck.choice((b"", b"body")),
            priority=luck.choice((None, 5)),
            flow_id=flow_id,
            idempotency_key=luck.choice(("", "", "key-1")),
            tags=luck.choice((None, {"app.team": "red"})),
            policy=luck.choice(_POLICIES),
            delay_until=self._clock() + delay if delay else None,
            deadline_at=self._clock() + deadline if deadline else None,
        )
        created = await self._do("submit", self._side.engine.executions.create(asked))
        if created is not None:
            self._executions.append(created.execution_id)

    async def _graph(self) -> None:
        asked = self._some_graph()
        made = await self._do("graph", self._side.engine.graphs.submit_graph(asked))
        if made is not None:
            self.known.flows.add(made.flow_id)
            self._executions += made.executions.values()

    def _some_graph(self) -> GraphSubmission:
        luck = self._luck
        names = [f"n{number}" for number in range(luck.randint(2, 8))]
        edges: list[GraphEdge] = []
        groups: list[GraphGroup] = []
        for place, target in enumerate(names[1:], 1):
            sources = luck.sample(names[:place], luck.randint(0, min(place, 5)))
            ref = luck.choice(("", "input", "report"))
            edges += [GraphEdge(source=one, target=target, data_passing_ref=ref) for one in sources]
            if sources and luck.random() < 0.6:
                groups.append(GraphGroup(target, self._group_policy(len(sources))))
        return GraphSubmission(
            nodes=tuple(
                GraphNode(kind="work", name=name, input=b"own", policy=luck.choice(_POLICIES[:3]))
                for name in names
            ),
            edges=tuple(edges),
            groups=tuple(groups),
        )

    def _group_policy(self, width: int) -> dict[str, object]:
        kind = self._luck.choice(("all_of", "any_of", "quorum"))
        if kind == "all_of":
            return {"kind": kind}
        cut = self._luck.choice(("cancel_remaining", "let_run"))
        many = {"k": self._luck.randint(1, width + 1)} if kind == "quorum" else {}
        return {"kind": kind, "on_satisfied": cut, **many}

    async def _claim(self) -> None:
        order = ClaimOrder(
            worker_id="pool",
            worker_instance_id="pool-1",
            lanes=("default", "gpu"),
            n=self._luck.randint(1, 4),
            lease_ms=self._luck.choice((1_000, 30_000)),
            upstreams=self._luck.random() < 0.5,
        )
        claimed = await self._do("claim", self._side.engine.claims.claim(order))
        self._held += [one.proof for one in claimed or ()]

    async def _finish(self) -> None:
        held = self._one(self._held[-4:])
        if held is None:
            await self._claim()
            return
        outcomes = self._side.engine.outcomes
        if self._luck.random() < 0.6:
            await self._do("complete", outcomes.complete(held, b"result"))
        else:
            category = self._luck.choice(("permanent", "transient"))
            await self._do("fail", outcomes.fail(held, Failure("broken", category)))

    async def _end(self) -> None:
        """End a member, and go on step by step with what that left over in its flow."""
        held = self._one(self._held[-6:])
        if held is None:
            await self._claim()
            return
        own, backend = held.execution_id, self._side.backend
        fence = Fence(held.lease_id, held.lease_epoch, held.attempt_id)
        failed = Failure("broken", "permanent")
        plan = complete(own, fence, b"result", "", "op")
        if held.record is not None and self._luck.random() < 0.3:
            plan = fail(held.record, fence, failed, 1.0, "op")
        self.trace.append(("end", told(await backend.apply([plan]))))
        await self._settle()

    async def _cancel_in_steps(self) -> None:
        flow_id = self._one(sorted(self.known.flows))
        if flow_id is not None:
            policy = self._luck.choice(("cancel_all", "cancel_pending", "flow_only"))
            plan = cancel_flow(flow_id, policy, "enough")  # type: ignore[arg-type]
            answers = await self._side.backend.apply_flows([plan])
            self.trace.append(("cancel in steps", told(answers)))
            await self._settle()

    async def _settle(self) -> None:
        """Step by step what flows have left to do, and how they are after each."""
        backend, flows = self._side.backend, sorted(self.known.flows)
        for _ in range(_MOST_STEPS):
            self.trace.append(("flows", await backend.flows(flows)))
            more = await backend.settle(flows)
            self.trace.append(("settle", told(more)))
            if not any(one is True for one in more):
                break

    async def _hand_back(self) -> None:
        held = self._one(self._held)
        if held is not None:
            for_ms = self._luck.choice((0, 600))
            await self._do("delay", self._side.engine.outcomes.delay(held, for_ms=for_ms))

    async def _park(self) -> None:
        held = self._one(self._held[-4:])
        if held is not None:
            others = [one for one in self._executions if one != held.execution_id]
            children = tuple(self._luck.sample(others, min(len(others), self._luck.randint(0, 2))))
            waiting = self._side.engine.outcomes.wait_for_children(held, children)
            await self._do("park", waiting)

    async def _cancel(self) -> None:
        own = self._one(self._executions)
        if own is not None:
            await self._do("cancel", self._side.engine.outcomes.cancel(LeaseProof(own), "enough"))

    async def _replay(self) -> None:
        own = self._one(await self._ended())
        if own is not None:
            await self._do("replay", self._side.engine.operators.replay(own))

    async def _replay_flow(self) -> None:
        flow_id = self._one(sorted(self.known.flows))
        if flow_id is not None:
            replays = self._side.engine.flow_operators
            await self._do("replay flow", replays.replay_flow(flow_id))

    async def _suspend(self) -> None:
        """Wait for the outside, as far as a store is concerned."""
        held = self._one(self._held[-4:])
        if held is None:
            return
        fence = Fence(held.lease_id, held.lease_epoch, held.attempt_id)
        plan = Plan(
            target=held.execution_id,
            rule="suspend",
            guard=Guard(frozenset({"active"}), fence),
            set={"state": "suspended", "next": "resume", "suspension_id": "susp-1"},
            attempt=PauseAttempt(self._luck.choice(("susp-1", "worker_delay"))),
            documents={SUSPENSION: b"{}"},
        )
        self.trace.append(("suspend", told(await self._side.backend.apply([plan]))))

    async def _resume(self) -> None:
        own = self._one(self._executions)
        if own is not None:
            guard = Guard(frozenset({"suspended"}))
            plan = Plan(target=own, rule="resume", guard=guard, set={"state": "waiting"})
            self.trace.append(("resume", told(await self._side.backend.apply([plan]))))

    async def _note(self) -> None:
        """A plan that changes little, if its flow is not cancelled."""
        own = self._one(self._executions)
        if own is not None:
            guard = Guard(frozenset[str](STATES), uncancelled=True)
            plan = Plan(target=own, rule="note", guard=guard, set={"detail": "noted"})
            self.trace.append(("note", told(await self._side.backend.apply([plan]))))

    async def _stand_by(self) -> None:
        """Park without anything to wait for."""
        held = self._one(self._held[-4:])
        if held is not None:
            fence = Fence(held.lease_id, held.lease_epoch, held.attempt_id)
            plan = Plan(
                target=held.execution_id,
                rule="park",
                guard=Guard(frozenset({"active"}), fence),
                op="park",
                set={"state": "blocked", "reason": "dependencies", "next": "resume"},
                attempt=PauseAttempt("waiting_children"),
                graph=self._luck.choice((None, GraphEdit())),
            )
            self.trace.append(("stand by", told(await self._side.backend.apply([plan, plan]))))

    async def _ended(self) -> list[str]:
        seen = await self._side.backend.read(self._executions, frozenset())
        return [one.record.execution_id for one in seen if one and one.record.state in FINAL]

    async def _cancel_flow(self) -> None:
        flow_id = self._one(sorted(self.known.flows))
        if flow_id is not None and self._luck.random() < 0.6:
            policy = self._luck.choice(("cancel_all", "cancel_pending", "flow_only"))
            cancels = self._side.engine.flow_operators
            await self._do(
                "cancel flow", cancels.cancel_flow(flow_id, policy, "enough", wait=False)
            )

    async def _wait(self) -> None:
        self._clock.advance(self._luck.choice((1, 500, 1_000, 2_000, 31_000)))
        counts = (await self._side.sweep.visit()).counts
        self.trace.append(("sweep", dict(counts)))

    async def _purge(self) -> None:
        if self._luck.random() < 0.3:
            self._clock.advance(90_000_000)
        self.trace.append(("purge", await self._side.backend.purge(10)))


async def _day(side: Side, clock: VirtualClock, seed: int) -> Trace:
    return await Day(side, clock, Random(seed)).spend(80)


async def _graphs(side: Side, clock: VirtualClock, seed: int) -> Trace:
    return await Day(side, clock, Random(seed), _GRAPH_ACTS).spend(80)


def _quotas(calls: LimitCalls) -> list[DefineQuota]:
    return [
        DefineQuota(
            Quota(
                quota_policy_id=own,
                window_seconds=4,
                max_requests_per_window=(1, 2, 3)[place],
                max_concurrent=(1, 0, 2)[place],
            )
        )
        for place, own in enumerate(calls.quotas)
    ]


async def _limits(side: Side, clock: VirtualClock, seed: int) -> Trace:
    """Batches about budgets and gates, and both as they are seen after each."""
    calls, trace, backend = LimitCalls(seed, COUNTS), Trace(), side.backend
    for name, items in (*calls.define(), ("define", _quotas(calls))):
        trace.append((name, await made(backend, name, items)))
    for _ in range(120):
        name, items = calls.next()
        trace.append((name, await made(backend, name, items)))
        trace.append(("budgets", await backend.budgets(calls.budgets)))
        trace.append(("gates", await backend.gates(calls.gates)))
        clock.advance(calls.pause())
        trace.append(("ended", await drop_what_ended(backend, calls)))
    return trace


_SMALL: Final = {
    "settle.EDGES_PER_STEP": 2,
    "settle.LOOKS_PER_STEP": 5,
    "settle.PAGE": 2,
    "settle.BYTES_PER_STEP": 9,
    "apply.MEMBERS_PER_STEP": 2,
    "apply.LOOKS_PER_STEP": 4,
    "graph.UPSTREAM_BYTES": 11,
    "gates.MOST_ADMISSIBLE": 2,
    "gates.MOST_LOOKS": 3,
    "gates.MOST_ENDED": 2,
    "lease.QUEUE_PAGE": 2,
    "lease.SPARE_LOOKS": 1,
}

_EDGE_BY_EDGE: Final = {
    "settle.EDGES_PER_STEP": 3,
    "settle.LOOKS_PER_STEP": 3,
    "settle.PAGE": 1,
}


class Scenario(NamedTuple):
    name: str
    play: Play
    seed: int
    # Constants it runs under, by their names in Lua files.
    bounds: Mapping[str, int] = {}

    def __str__(self) -> str:
        return f"{self.name} {self.seed}"


SCENARIOS: Final = (
    *(Scenario("a day", _day, seed) for seed in range(4)),
    *(Scenario("a day in small steps", _day, seed, _SMALL) for seed in range(4, 9)),
    *(Scenario("graphs", _graphs, seed) for seed in range(3)),
    *(Scenario("graphs in small steps", _graphs, seed, _SMALL) for seed in range(3, 12)),
    *(Scenario("output", mechanisms.output, seed) for seed in range(1)),
    *(Scenario("small output", mechanisms.output, seed, SMALL_OUTPUT) for seed in range(3)),
    *(Scenario("walks", walks.walks, seed) for seed in range(1)),
    *(Scenario("walks in small steps", walks.walks, seed, _SMALL) for seed in range(1, 4)),
    *(Scenario("walks edge by edge", walks.walks, seed, _EDGE_BY_EDGE) for seed in range(4, 7)),
    Scenario("results", walks.results, 0),
    # All that a step may copy, and one byte less.
    *(
        Scenario("results one by one", walks.results, seed, {"settle.BYTES_PER_STEP": most})
        for seed, most in enumerate((7, 8))
    ),
    Scenario("ungathered", walks.ungathered, 0),
    Scenario("families", walks.families, 0, {"members.LONG_REASON": 3}),
    *(Scenario("cancelled flows", walks.cancelled, seed, _SMALL) for seed in range(2)),
    Scenario("trims", mechanisms.trims, 0),
    Scenario("waiters", mechanisms.waiters, 0, _SMALL),
    Scenario("reservations", mechanisms.reservations, 0, {"lease.SPARE_LOOKS": 1}),
    Scenario("chunks", mechanisms.chunks, 0),
    Scenario("long lists", mechanisms.long_lists, 0),
    Scenario("documents", mechanisms.documents, 0),
    Scenario("notifications", mechanisms.notifications, 0),
    *(Scenario("limits", _limits, seed) for seed in range(3)),
    *(Scenario("limits in small steps", _limits, seed, _SMALL) for seed in range(3, 5)),
    Scenario("limits, one end a step", _limits, 3, _SMALL | {"gates.MOST_ENDED": 1}),
)


@contextmanager
def _without_clocks() -> Iterator[None]:
    """Calls that do not end early because a server is slow."""
    before = dict(CPU_LIMITS)
    CPU_LIMITS.update({name: (_LIFTED_S, least) for name, (_, least) in before.items()})
    try:
        yield
    finally:
        CPU_LIMITS.update(before)


async def trace_of(scenario: Scenario, store: str) -> Trace:
    """What a store comes to; an error it ends with is the last thing told."""
    with ExitStack() as stack:
        stack.enter_context(_without_clocks())
        for name, value in scenario.bounds.items():
            stack.enter_context(patched(name, value))
        clock = VirtualClock()
        side = Side(store, _OPEN[store](clock, Path()))
        await side.open()
        try:
            return await scenario.play(side, clock, scenario.seed)
        finally:
            await side.close()
