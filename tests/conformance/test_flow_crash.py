"""Processes that die at every call to the store, and others that bring things to the same end."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgspec
import pytest

from flowfabric.backend.base import Backend
from flowfabric.backend.flow_store import MemberQuery
from flowfabric.backend.types import ConfigPut
from flowfabric.core import apply, new_execution, settle
from flowfabric.core.new_execution import Size
from flowfabric.core.rules.attempts import Failure
from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine import Engine, engine_on, secret
from flowfabric.engine.flows.graphs import flow_id_for
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.operations.executions import Submission
from flowfabric.operations.flows import (
    GraphEdge,
    GraphGroup,
    GraphNode,
    GraphSubmission,
    NewEdge,
    NewEdgePolicy,
    StagedEdge,
)
from tests.clock import VirtualClock
from tests.conformance.driver import events_of
from tests.conformance.dying import Died, Dying
from tests.conformance.graphs import Arrow, FlowUnderTest, Graph, Member, create
from tests.stores import CONFORMANCE, STORES

MINUTE: Final = 60_000
BROKEN: Final = Failure("broken", "permanent")
# A lane's state is read again on every notification, and when one arrives is a matter of luck.
SETTINGS: Final = ("config_get",)
ANY_OF: Final = {"policy": "any_of", "k": 1, "on_satisfied": "cancel_remaining"}


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few things fit a step, so that small graphs need many."""
    monkeypatch.setattr(settle, "EDGES_PER_STEP", 3)
    monkeypatch.setattr(settle, "PAGE", 3)
    monkeypatch.setattr(apply, "MEMBERS_PER_STEP", 3)
    tiny = (Size(2, 2, 1_000), Size(2, 3, 1_000))
    monkeypatch.setattr(new_execution.chunks_of, "__defaults__", tiny)


class World:
    """One fresh store with a flow in it, and what a test needs to know of that flow."""

    def __init__(self, backend: Backend, clock: VirtualClock) -> None:
        self.backend = backend
        self.clock = clock
        self.flow_id = ""
        self.ids: dict[str, str] = {}
        self.held: dict[str, LeaseProof] = {}

    @property
    def engine(self) -> Engine:
        return engine_on(self.backend)

    async def graph(self, graph: Graph, *taken: str) -> None:
        engine = self.engine
        flow = await create(engine, graph)
        self.flow_id, self.ids = flow.flow_id, dict(flow.ids)
        for name in taken:
            self.held[name] = (await flow.take(name)).proof
        await engine.close()

    async def sweep(self, times: int = 2) -> None:
        """Let another process look after what is due."""
        engine = self.engine
        for _ in range(times):
            self.clock.advance(1)
            result = await TimerSweep(engine).visit()
            assert result.total("error") == 0
        await engine.close()

    async def picture(self) -> object:
        """How everything stands, told by names."""
        (flow,) = await self.backend.flows([self.flow_id])
        if flow is None:
            return None
        names = {own: name for name, own in self.ids.items()}
        seen = await self.backend.read(list(self.ids.values()), frozenset({"group"}))
        return (
            flow.counts,
            (flow.node_count, flow.edge_count, flow.graph_revision, flow.incomplete),
            (bool(flow.cancelled_at), flow.cancel_policy, flow.cancel_reason),
            (bool(flow.finished_at), flow.unsettled, flow.due_at),
            {names[one.record.execution_id]: _member(one, names) for one in seen if one},
            sorted(
                (names[entry.execution_id], entry.details["outcome"])
                for entry in await events_of(self.backend, "completion")
            ),
            [entry.details for entry in await events_of(self.backend, "flow")],
        )


def _member(seen: Any, names: Mapping[str, str]) -> object:
    record = seen.record
    told = (record.state, record.reason, record.next, record.cancellation_reason)
    group = seen.group and msgspec.structs.replace(
        seen.group, target="", flow_id="", fired_at=bool(seen.group.fired_at)
    )
    edges = sorted((names.get(edge.source, ""), edge.state, edge.outcome) for edge in seen.incoming)
    return told, record.cancelled_by, record.replay_count, group, edges


Prepare = Callable[[World], Awaitable[None]]
Operate = Callable[[World, Engine], Awaitable[None]]


class Scenario(msgspec.Struct, frozen=True):
    """`operate` is cut at every call. One that `repeats` is done again by whoever asked for it;
    any other must come to its end without anybody asking, once its first step is done."""

    prepare: Prepare
    operate: Operate
    repeats: bool = False


# ---- what a step leaves over is done by somebody


async def _fan_out(world: World) -> None:
    await world.graph(Graph(arrows=[("top", f"t{i}") for i in range(10)]), "top")


async def _deep(world: World) -> None:
    arrows = [("top", f"a{i}") for i in range(5)]
    arrows += [(f"a{i}", f"b{j}") for i in range(5) for j in range(3)]
    arrows += [(f"b{j}", "end") for j in range(3)]
    await world.graph(Graph(arrows=arrows), "top")


async def _race(world: World) -> None:
    names = [f"s{i}" for i in range(10)]
    arrows = [Arrow(name, "t", "input") for name in names]
    arrows += [Arrow(name, "u") for name in names[:4]]
    await world.graph(Graph(arrows=arrows, groups={"t": ANY_OF, "u": ANY_OF}), "s2")


async def _many(world: World) -> None:
    members = {f"m{i}": Member() for i in range(10)}
    await world.graph(Graph(arrows=[("m0", "x"), ("m1", "y")], members=members), "m3", "m4")


def _complete(name: str) -> Operate:
    async def operate(world: World, engine: Engine) -> None:
        await engine.outcomes.complete(world.held[name], b"done")

    return operate


def _fail(name: str) -> Operate:
    async def operate(world: World, engine: Engine) -> None:
        await engine.outcomes.fail(world.held[name], BROKEN)

    return operate


def _cancel(policy: str, *, wait: bool) -> Operate:
    async def operate(world: World, engine: Engine) -> None:
        await engine.flow_operators.cancel_flow(world.flow_id, policy, "enough", wait=wait)

    return operate


async def _expiring(world: World) -> None:
    arrows = [("top", f"t{i}") for i in range(8)]
    members = {"top": Member(deadline_at=world.clock() + 5)}
    await world.graph(Graph(arrows=arrows, members=members))
    world.clock.advance(5)


async def _sweep(world: World, engine: Engine) -> None:
    await TimerSweep(engine).visit()


async def _drained(world: World) -> None:
    """Two members drain while the flow around them is cancelled."""
    await _many(world)
    engine = world.engine
    await engine.flow_operators.cancel_flow(world.flow_id, "cancel_pending", "enough", wait=True)
    await engine.close()


async def _hand_back(world: World, engine: Engine) -> None:
    await engine.outcomes.delay(world.held["m3"], for_ms=0)
    await engine.outcomes.complete(world.held["m4"])


async def _abandoned(world: World) -> None:
    """Half a graph, ten minutes later."""
    dying = Dying(world.backend, cut=4, uncounted=SETTINGS)
    engine = engine_on(dying.as_backend())
    with pytest.raises(Died):
        await engine.graphs.submit_graph(_asked())
    await engine.close()
    (flow,) = await world.backend.flows_in(await _home(engine), "", 10)
    world.flow_id = flow.flow_id
    await _know_members(world)
    world.clock.advance(10 * MINUTE)


async def _redeemed(world: World) -> None:
    """What many sources failed for was skipped; since then all but one have succeeded."""
    sources = [f"s{i}" for i in range(10)]
    await world.graph(Graph(arrows=[(name, "t") for name in sources]), *sources)
    engine = world.engine
    flow = FlowUnderTest(engine, world.flow_id, world.ids)
    for name in sources:
        await engine.outcomes.fail(world.held[name], BROKEN)
        await engine.operators.replay(world.ids[name])
    await flow.complete(*sources[1:])
    await flow.settled()
    await engine.close()


async def _replay_skipped(world: World, engine: Engine) -> None:
    await engine.operators.replay(world.ids["t"])


HEALING: Final[dict[str, Scenario]] = {
    "a wide fan-out": Scenario(_fan_out, _complete("top")),
    "a deep skip": Scenario(_deep, _fail("top")),
    "a race": Scenario(_race, _complete("s2")),
    "a race nobody wins": Scenario(_race, _fail("s2")),
    "cancel_all": Scenario(_many, _cancel("cancel_all", wait=False)),
    "cancel_all with wait": Scenario(_many, _cancel("cancel_all", wait=True)),
    "cancel_pending": Scenario(_many, _cancel("cancel_pending", wait=True)),
    "flow_only": Scenario(_many, _cancel("flow_only", wait=True)),
    "a replay that leaves work over": Scenario(_redeemed, _replay_skipped),
    "a sweep that expires": Scenario(_expiring, _sweep),
    "a sweep that gives a submit up": Scenario(_abandoned, _sweep),
}


# ---- what takes several calls is done by asking again


def _asked() -> GraphSubmission:
    names = [f"n{i}" for i in range(9)]
    edges = [GraphEdge(source=a, target=b) for a, b in zip(names[:5], names[3:8], strict=True)]
    edges += [GraphEdge(source=name, target="n8") for name in names[:7]]
    return GraphSubmission(
        nodes=tuple(GraphNode(kind="work", name=name) for name in names),
        edges=tuple(edges),
        groups=(GraphGroup("n8", {"kind": "quorum", "k": 2, "on_satisfied": "cancel_remaining"}),),
        idempotency_key="once",
    )


async def _home(engine: Engine) -> int:
    own = flow_id_for(await engine.deps.secret.get(), "default", "once")
    return engine.deps.counts.of_flow(own)


async def _know_members(world: World) -> None:
    members = await world.backend.members(MemberQuery(flow_id=world.flow_id))
    world.ids = {one.execution_id: one.execution_id for one in members}


async def _nothing(world: World) -> None:
    """The store is empty."""


async def _submit(world: World, engine: Engine) -> None:
    submitted = await engine.graphs.submit_graph(_asked())
    world.flow_id, world.ids = submitted.flow_id, dict(submitted.executions)


FLOW: Final = str(UUID(int=7))
EDGES: Final = {name: str(UUID(int=number)) for number, name in enumerate(("ac", "bc", "cd"), 20)}


async def _edit(world: World, engine: Engine) -> None:
    """Grow a flow by hand; every call may be made again."""
    flows = engine.flows
    await flows.create_flow(FLOW, "edited")
    world.flow_id = FLOW
    for name in "abcd":
        # Its key finds it again; joining it once more is one of the calls that may be cut.
        asked = Submission(
            kind="work", flow_id=FLOW, idempotency_key=name, delay_until=9_000_000_000_000
        )
        world.ids[name] = (await engine.executions.create(asked)).execution_id
        await flows.add_member(FLOW, world.ids[name])
    stored = await engine.flow_reads.describe_flow(FLOW)
    if not stored.edge_count:
        policy = NewEdgePolicy(kind="any_of", on_satisfied="let_run")
        await flows.set_edge_group_policy(FLOW, world.ids["c"], policy)
    for ends in ("ac", "bc"):
        await _stage(world, engine, ends)
        staged = StagedEdge(edge_id=EDGES[ends], downstream=world.ids["c"])
        await flows.apply_edge(FLOW, staged)
    await _stage(world, engine, "cd", apply=True)
    await flows.set_flow_tags(FLOW, {"app.team": "red"})


async def _stage(world: World, engine: Engine, ends: str, *, apply: bool = False) -> None:
    found = await engine.flow_reads.describe_flow(FLOW)
    edge = NewEdge(
        edge_id=EDGES[ends],
        upstream=world.ids[ends[0]],
        downstream=world.ids[ends[1]],
        expected_graph_revision=found.graph_revision,
        apply=apply,
    )
    await engine.flows.stage_edge(FLOW, edge)


async def _failed(world: World) -> None:
    arrows = [("top", "a"), ("top", "b"), ("a", "c"), ("b", "c"), ("c", "d")]
    await world.graph(Graph(arrows=arrows), "top")
    engine = world.engine
    flow = FlowUnderTest(engine, world.flow_id, world.ids)
    await engine.outcomes.fail(world.held["top"], BROKEN)
    await flow.settled()
    await engine.close()


async def _replay(world: World, engine: Engine) -> None:
    await engine.flow_operators.replay_flow(world.flow_id)


async def _parent(world: World) -> None:
    engine = world.engine
    parent = (await engine.executions.create(Submission(kind="work"))).execution_id
    world.ids["parent"] = parent
    world.held["parent"] = (await engine.grants.issue_and_claim(parent, 3_600_000)).proof
    await engine.close()


async def _spawn(world: World, engine: Engine) -> None:
    held = world.held["parent"]
    world.flow_id = await engine.flows.children_flow(held.execution_id)
    children = []
    for number in range(3):
        asked = Submission(kind="work", flow_id=world.flow_id, idempotency_key=f"child:{number}")
        children.append((await engine.executions.create(asked)).execution_id)
        world.ids[f"child{number}"] = children[-1]
    await engine.outcomes.wait_for_children(held, tuple(children))


REPEATED: Final[dict[str, Scenario]] = {
    "a submit in chunks": Scenario(_nothing, _submit, repeats=True),
    "edits": Scenario(_nothing, _edit, repeats=True),
    "a replay": Scenario(_failed, _replay, repeats=True),
    "children": Scenario(_parent, _spawn, repeats=True),
    "draining members": Scenario(_drained, _hand_back, repeats=True),
}
SCENARIOS: Final = HEALING | REPEATED


# ---- the cuts


@asynccontextmanager
async def world_of(store: str, directory: Path) -> AsyncIterator[World]:
    clock = VirtualClock()
    directory.mkdir()
    backend = STORES[store](clock, directory)
    await backend.prepare()
    # The same ids on every store, so that what they hold can be compared.
    await backend.config_put([ConfigPut(secret.DOCUMENT, 0, b'{"hex": "%s"}' % (b"5e" * 32))])
    yield World(backend, clock)
    discrepancies = await backend.verify()
    await backend.close()
    assert discrepancies == []


async def run(world: World, scenario: Scenario, cut: int | None, *, after: bool) -> list[str]:
    """Operate, and perhaps die; the calls that were made."""
    dying = Dying(world.backend, cut, after=after, uncounted=SETTINGS)
    engine = engine_on(dying.as_backend())
    try:
        await scenario.operate(world, engine)
        await engine.settling.drain()
    except Exception:
        # Told by a process that died, to nobody: what matters is what the store holds.
        if cut is None:
            raise
    await engine.settling.drain()
    await engine.lanes.close()
    return dying.calls


async def ask_again(world: World, scenario: Scenario) -> None:
    engine = world.engine
    try:
        await scenario.operate(world, engine)
    finally:
        await engine.close()


async def uncut(store: str, directory: Path, scenario: Scenario) -> tuple[list[str], object]:
    async with world_of(store, directory) as world:
        await scenario.prepare(world)
        calls = await run(world, scenario, None, after=False)
        await world.sweep()
        return calls, await world.picture()


WRITES: Final = frozenset({"apply", "apply_flows", "settle", "create", "create_graph"})


def cuts(calls: list[str]) -> list[tuple[int, bool]]:
    """Every place to die at. Before and after a call that only reads are the same place."""
    return [
        (number, after)
        for number, call in enumerate(calls)
        for after in ((False, True) if call in WRITES else (False,))
    ]


@pytest.mark.parametrize("store", CONFORMANCE)
@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_cut_anywhere_comes_to_the_same_end(store: str, name: str, tmp_path: Path) -> None:
    scenario = SCENARIOS[name]
    calls, expected = await uncut(store, tmp_path / "uncut", scenario)
    first_write = next(number for number, call in enumerate(calls) if call in WRITES)
    for cut, after in cuts(calls):
        async with world_of(store, tmp_path / f"{cut}-{after}") as world:
            await scenario.prepare(world)
            await run(world, scenario, cut, after=after)
            await world.sweep()
            began = cut > first_write or (cut == first_write and after)
            if scenario.repeats or not began:
                await ask_again(world, scenario)
                await world.sweep()
            found = await world.picture()
            assert found == expected, f"died {'after' if after else 'before'} {calls[cut]}"


@pytest.mark.parametrize("store", CONFORMANCE)
async def test_a_submit_nobody_repeats_is_whole_or_given_up(store: str, tmp_path: Path) -> None:
    scenario = REPEATED["a submit in chunks"]
    calls, _ = await uncut(store, tmp_path / "uncut", scenario)
    for cut, after in cuts(calls):
        async with world_of(store, tmp_path / f"{cut}-{after}") as world:
            await run(world, scenario, cut, after=after)
            world.clock.advance(10 * MINUTE)
            await world.sweep()
            (found,) = await world.backend.flows_in(await _home(world.engine), "", 10) or (None,)
            if found is None or not found.incomplete:
                continue
            assert found.cancel_reason == "submit_abandoned"
            assert found.counts == {"cancelled": found.node_count}
            assert (bool(found.finished_at), found.due_at) == (True, 0)


@pytest.mark.parametrize("store", CONFORMANCE)
async def test_two_processes_that_finish_the_same_work_do_it_once(
    store: str, tmp_path: Path
) -> None:
    """Both die in the middle of the same cascade, one behind the other."""
    for name, scenario in HEALING.items():
        calls, expected = await uncut(store, tmp_path / name, scenario)
        async with world_of(store, tmp_path / f"{name}-twice") as world:
            await scenario.prepare(world)
            await run(world, scenario, max(0, len(calls) - 2), after=True)
            for cut in (1, 2):
                engine = engine_on(
                    Dying(world.backend, cut, after=True, uncounted=SETTINGS).as_backend()
                )
                with suppress(Died):
                    for _ in range(4):
                        await TimerSweep(engine).visit()
                await engine.lanes.close()
            await world.sweep()
            assert await world.picture() == expected, name
