"""Every method of `fabric.admin`, on a server and on an engine in this process, which must reach
every route there is."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from flowfabric import FlowFabric
from flowfabric.client.http import Response
from flowfabric.client.rest import Request, Rest
from flowfabric.config import Settings
from flowfabric.core.condition_checks import Fresh, UsePending
from flowfabric.core.conditions import signal_set
from flowfabric.core.journal import JournalEntry
from flowfabric.core.rules.signals import Accepted
from flowfabric.core.tokens import WaitpointToken
from flowfabric.errors import (
    BudgetNotFound,
    ExecutionNotFound,
    ExecutionNotTerminal,
    FlowNotFound,
    InvalidInput,
    NotFound,
)
from flowfabric.fabric.admin import Admin
from flowfabric.operations import budgets, flows
from flowfabric.operations.attempts import (
    Appended,
    CancelChildren,
    ChildrenCancelled,
    Kept,
    NewEntry,
    NewFrame,
    NewWaitpoint,
    Output,
    Progress,
    ProgressReported,
    Suspend,
    Suspended,
    SuspendOrder,
    UsageReport,
)
from flowfabric.operations.events import CompletionEvent, EventQuery
from flowfabric.operations.execution_queries import Search
from flowfabric.operations.executions import (
    AlreadySatisfied,
    ExecutionCreated,
    Reclaim,
    ReclaimGranted,
    Revoked,
    Submission,
)
from flowfabric.operations.flow_queries import FlowSearch
from flowfabric.operations.nouns import DECLARED
from flowfabric.operations.schedules import Backfill, NewSchedule
from flowfabric.operations.signals import Approval, Mail, NewSignal
from flowfabric.operations.store import NewSecret
from flowfabric.operations.streams import StreamRange, Tail
from flowfabric.operations.tasks import NewTask
from flowfabric.operations.tokens import NewToken
from flowfabric.operations.workers import (
    Claim,
    ClaimOrder,
    Complete,
    Fail,
    Finished,
    GrantClaim,
    LeasesEnded,
    NewGrant,
    Registration,
    Renewal,
    Renewed,
)
from flowfabric.server.route import Router
from flowfabric.server.routes import ROUTES
from flowfabric.worker.calls import fence_of, finish_of, suspend_of
from flowfabric.worker.session import append
from tests.serving import TOKEN, serving

NOBODY = "{fp:1}:00000000-0000-4000-8000-000000000000"
SETTINGS = Settings(searchable_tags=frozenset({"app.team"}))


@asynccontextmanager
async def _embedded() -> AsyncIterator[FlowFabric]:
    async with FlowFabric("memory://", settings=SETTINGS) as fabric:
        yield fabric


@asynccontextmanager
async def _http() -> AsyncIterator[FlowFabric]:
    async with (
        serving(SETTINGS) as server,
        FlowFabric(server.url, token=TOKEN, settings=Settings()) as fabric,
    ):
        yield fabric


@pytest.fixture(params=[_embedded, _http], ids=["embedded", "http"])
async def fabric(request: pytest.FixtureRequest) -> AsyncIterator[FlowFabric]:
    async with request.param() as opened:
        yield opened


class World:
    """A fabric with one worker, which does what the test says."""

    def __init__(self, fabric: FlowFabric) -> None:
        self.fabric = fabric
        self.admin = fabric.admin

    async def submit(self, lane: str = "default", **members: Any) -> str:
        told = await self.admin.submit(Submission(lane=lane, kind="k", **members))
        assert told.is_new
        return told.execution_id

    async def claim(self, lane: str = "default") -> Claim:
        worker = (await self.fabric.open()).worker
        order = ClaimOrder(worker_id="w", worker_instance_id="w-1", lanes=(lane,))
        reply = await worker.claim(order)
        assert reply is not None
        (claim,) = reply.items
        return claim

    async def finish(self, claim: Claim, outcome: Complete | Fail) -> None:
        worker = (await self.fabric.open()).worker
        (done,) = (await worker.finish([finish_of(claim, outcome)])).items
        assert not isinstance(done, Exception)

    async def ended(self, outcome: Complete | Fail, lane: str) -> str:
        await self.submit(lane)
        claim = await self.claim(lane)
        await self.finish(claim, outcome)
        return claim.execution_id

    async def suspended(self, lane: str) -> tuple[str, Suspended]:
        await self.submit(lane)
        claim = await self.claim(lane)
        condition = signal_set("go")
        order = SuspendOrder(resume_condition=condition, waitpoints=(Fresh(waitpoint_key="k"),))
        done = await (await self.fabric.open()).worker.suspend(suspend_of(claim, order))
        assert isinstance(done, Suspended)
        return claim.execution_id, done


async def _reads(world: World) -> None:
    admin = world.admin
    done = await world.ended(Complete(b"out", "json"), "reads")
    assert (await admin.describe_execution(done)).result_encoding == "json"
    assert await admin.state(done) == "completed"
    assert await admin.result(done) == b"out"
    ended = await admin.wait_for_terminal(done)
    assert ended is not None
    assert (ended.state, ended.result) == ("completed", b"out")
    waiting = await world.submit("reads", input=b"in", tags={"app.team": "red"})
    assert await admin.wait_for_terminal(waiting, 0) is None
    assert await admin.result(waiting) is None
    assert await admin.input(waiting) == b"in"
    context = await admin.read_context(waiting)
    assert (context.input_payload, context.execution_kind) == (b"in", "k")
    assert context.tags == {"app.team": "red"}
    assert [one.state for one in (await admin.attempts(done)).attempts] == ["ended_success"]
    assert [one.event for one in (await admin.history(done)).items] == ["acquired", "released"]
    assert (await admin.upstreams(done, results=True)).upstreams == ()
    assert (await admin.journal(done)).items == []
    assert (await admin.resume_signals(done)).signals == ()
    assert [one.code for one in (await admin.explain(waiting)).blockers] == ["no_worker"]
    found = await admin.search(Search(tag=("app.team=red",), state=("waiting",)))
    assert [one.execution_id for one in found.items] == [waiting]
    partition = int(done[4 : done.index("}")])
    assert done in (await admin.list_executions(partition)).items
    listed = await admin.list_lane("reads", "eligible")
    assert [one.execution_id for one in listed.items] == [waiting]
    assert (await admin.count("reads")).counts["completed"] == 1
    many = await admin.submit_many([Submission(lane="reads", kind="k") for _ in range(3)])
    assert all(isinstance(one, ExecutionCreated) for one in many)


async def _acts(world: World) -> None:
    admin = world.admin
    waiting = await world.submit("acts")
    assert (await admin.set_execution_tags(waiting, {"app.team": "red"})).count == 1
    assert (await admin.set_priority(waiting, 7)).execution_id == waiting
    assert (await admin.hold(waiting, "not now")).outcome == "held"
    assert (await admin.release(waiting)).outcome == "released"
    assert (await admin.cancel(waiting, "enough")).public_state == "cancelled"
    assert (await admin.describe_execution(waiting)).cancellation_reason == "enough"
    assert (await admin.replay(waiting, "again", "me")).public_state == "waiting"
    claim = await world.claim("acts")
    held = claim.execution_id
    lease = (await admin.describe_execution(held)).current_lease
    assert lease is not None
    assert (lease.lease_id, lease.expires_at) == (claim.lease_id, claim.lease_expires_at)
    assert await admin.revoke_lease(held) == Revoked(claim.lease_id, claim.lease_epoch)
    (taken,) = (await admin.list_expired_leases(as_of=2**50)).items
    assert (taken.execution_id, taken.worker_instance_id) == (held, "w-1")
    assert await admin.revoke_lease(held) == AlreadySatisfied("already_revoked")
    body = Reclaim(worker_id="w", worker_instance_id="w-1", lane_id="acts", grant_ttl_ms=1_000)
    assert isinstance(await admin.reclaim(held, body), ReclaimGranted)
    paused, _ = await world.suspended("paused")
    found = await admin.search(Search(state=("suspended",)))
    listed = (await admin.list_suspended(int(paused[4 : paused.index("}")]))).items
    assert [(one.execution_id, one.reason) for one in listed] == [(paused, "waiting_for_signal")]
    assert [one.execution_id for one in found.items] == [paused]
    assert (await admin.resume(paused)).public_state == "waiting"


async def _signals(world: World) -> None:
    admin = world.admin
    paused, suspension = await world.suspended("signals")
    (issued,) = suspension.waitpoints
    (shown,) = (await admin.list_pending_waitpoints(paused)).items
    assert (shown.waitpoint_id, shown.required_signal_names) == (issued.waitpoint_id, ("go",))
    told = await admin.waitpoint_token(paused, shown.waitpoint_id)
    token = told.token
    assert isinstance(token, WaitpointToken)
    assert token.reveal() not in repr(told)
    with pytest.raises(NotFound, match="waitpoint token not found"):
        await admin.waitpoint_token(paused, str(uuid4()))
    send = NewSignal(
        waitpoint_id=shown.waitpoint_id,
        signal_id=str(uuid4()),
        signal_name="other",
        signal_category="c",
        source_type="s",
        source_identity="me",
        waitpoint_token=token,
    )
    assert isinstance(await admin.signal(paused, send), Accepted)
    decision = Approval(signal_name="go", source_identity="me")
    done = await admin.approve(paused, shown.waitpoint_id, decision)
    assert isinstance(done, Accepted)
    assert done.effect == "resume_condition_satisfied"
    assert await admin.state(paused) == "waiting"
    mail = await admin.signal_by_name(
        paused, "go", Mail(payload=msgspec.Raw(b'{"n":1}'), id="first")
    )
    assert isinstance(mail, Accepted)
    (unread,) = (await admin.read_mailbox(paused)).signals
    assert (unread.signal_name, unread.payload) == ("go", b'{"n":1}')


async def _output(world: World) -> None:
    admin = world.admin
    own = await world.submit("output")
    worker = (await world.fabric.open()).worker
    claim = await world.claim("output")
    patch = NewFrame(
        frame_type="s", payload=b'{"a":1}', mode="summary", patch_kind="json-merge-patch"
    )
    await append(worker, claim, [NewFrame(frame_type="t", payload=b"hello", seq=1), patch])
    read = await admin.read_stream(own, 0, StreamRange(visibility="exclude_best_effort"))
    assert read.frames[0].frame.payload == b"hello"
    tail = await admin.tail_stream(own, 0, Tail(after=read.next_after, block_ms=1))
    assert tail.frames == ()
    summary = await admin.read_summary(own, 0)
    assert msgspec.json.decode(summary.document) == {"a": 1}
    with pytest.raises(NotFound, match="summary not found"):
        await admin.read_summary(own, 7)
    begin = await admin.read_events()
    await world.finish(claim, Complete())
    asked = EventQuery(families="completion", cursor=begin.next_cursor, wait_ms=5_000)
    (event,) = (await admin.read_events(asked)).items
    assert isinstance(event, CompletionEvent)
    assert (event.execution_id, event.outcome) == (own, "success")


def _graph() -> flows.GraphSubmission:
    nodes = tuple(
        flows.GraphNode(name=name, lane="flows", kind="k", policy='{"max_reclaim_count":3}')
        for name in ("a", "b", "c")
    )
    return flows.GraphSubmission(
        flow_kind="etl", nodes=nodes, edges=(flows.GraphEdge(source="a", target="b"),)
    )


async def _flows(world: World) -> None:
    admin = world.admin
    told = await admin.submit_graph(_graph())
    assert isinstance(told, flows.GraphSubmitted)
    own, ids = told.flow_id, told.executions
    assert (await admin.describe_flow(own)).total_members == 3
    assert (await admin.set_flow_tags(own, {"app.team": "red"})).count == 1
    found = await admin.search_flows(FlowSearch(tag=("app.team=red",)))
    assert [one.flow_id for one in found.items] == [own]
    partition = int(ids["a"][4 : ids["a"].index("}")])
    assert own in [one.flow_id for one in (await admin.list_flows(partition)).items]
    assert len((await admin.list_members(own)).items) == 3
    (edge,) = (await admin.list_edges(own)).items
    assert (await admin.list_edges(own, ids["b"], "incoming")).items == [edge]
    assert (await admin.list_edges(own, ids["b"], "outgoing")).items == []
    assert await admin.describe_edge(own, edge.edge_id) == edge
    assert await admin.describe_edge(own, str(uuid4())) is None
    policy = flows.NewEdgePolicy(kind="any_of", on_satisfied="let_run")
    assert await admin.set_edge_group_policy(own, ids["c"], policy) == flows.EdgePolicySet()
    revision = (await admin.describe_flow(own)).graph_revision
    staged = await admin.stage_edge(
        own,
        flows.NewEdge(
            edge_id=str(uuid4()),
            upstream=ids["b"],
            downstream=ids["c"],
            expected_graph_revision=revision,
        ),
    )
    apply = flows.StagedEdge(edge_id=staged.edge_id, downstream=ids["c"])
    assert await admin.apply_edge(own, apply) == flows.EdgeApplied(1)
    assert await admin.apply_edge(own, apply) == flows.EdgeAlreadyApplied()
    await world.finish(await world.claim("flows"), Fail("no", "handler_error", retryable=False))
    replayed = await admin.replay_flow(own, reason="again")
    assert ids["a"] in [one.execution_id for one in replayed.items]
    cancelled = await admin.cancel_flow(own, reason="enough", wait=True)
    assert isinstance(cancelled, flows.MembersCancelled)
    assert set(cancelled.member_execution_ids) == set(ids.values())


async def _built(world: World) -> None:
    admin = world.admin
    made = await admin.create_flow(flow_kind="etl")
    assert isinstance(made, flows.FlowCreated)
    member = await admin.mint_for_flow(made.flow_id, UUID(int=7))
    await world.submit("built", execution_id=member)
    assert await admin.add_member(made.flow_id, member) == flows.MemberAdded(member, 1)
    assert await admin.add_member(made.flow_id, member) == flows.AlreadyMember(member, 1)
    assert await admin.children_flow(member) == made.flow_id
    await world.submit("built", execution_id=await admin.mint_for_lane("built"))
    key = await admin.mint_for_key("order 7")
    await world.submit("built", execution_id=key, idempotency_key="order 7")


async def _limits(world: World) -> None:
    admin = world.admin
    body = budgets.NewBudget(
        scope_type="global",
        scope_id="",
        enforcement_mode="strict",
        on_hard_limit="reject",
        on_soft_limit="warn",
        reset_interval_ms=0,
        dimensions=["tokens"],
        hard_limits=[100],
        soft_limits=[0],
    )
    made = await admin.create_budget(body)
    assert isinstance(made, budgets.BudgetCreated)
    own = made.budget_id
    assert await admin.report_usage(own, {"tokens": 40}, "k") == budgets.Ok()
    assert await admin.report_usage(own, {"tokens": 40}, "k") == budgets.AlreadyApplied()
    breach = await admin.report_usage(own, {"tokens": 61})
    assert isinstance(breach, budgets.HardBreach)
    for name in ("r/1", "r2"):
        hold = budgets.NewReservation(reservation_id=name, dimensions={"tokens": 30}, ttl_ms=60_000)
        assert isinstance(await admin.reserve(own, hold), budgets.Reserved)
    assert await admin.commit_reservation(own, "r/1", {"tokens": 10}) == budgets.Ok()
    assert await admin.cancel_reservation(own, "r2") == budgets.Ok()
    assert (await admin.describe_budget(own)).usage == {"tokens": 50}
    assert (await admin.reset_budget(own)).next_reset_at == 0
    change = budgets.BudgetChange(hard_limits={"tokens": 200})
    assert (await admin.change_budget(own, change)).after == {"hard_limits.tokens": 200}
    assert own in [one.budget.budget_id for one in (await admin.list_budgets()).items]
    quota = budgets.NewQuota(window_seconds=1, max_requests_per_window=1, max_concurrent=1)
    created = await admin.create_quota(quota)
    assert isinstance(created, budgets.QuotaCreated)
    policy_id = created.quota_policy_id
    more = budgets.QuotaChange(max_concurrent=2)
    assert (await admin.change_quota(policy_id, more)).after == {"max_concurrent": 2}
    assert (await admin.describe_quota(policy_id)).max_concurrent == 2
    assert policy_id in [one.quota.quota_policy_id for one in (await admin.list_quotas()).items]


async def _lanes(world: World) -> None:
    admin = world.admin
    await world.submit("a lane/x")
    changed = await admin.set_lane("a lane/x", state="paused")
    assert (changed.lane_id, changed.state) == ("a lane/x", "paused")
    assert "a lane/x" in [one.lane_id for one in (await admin.list_lanes()).items]
    assert (await admin.lane_queues("a lane/x")).state == "paused"


async def _schedules(world: World) -> None:
    admin = world.admin
    body = NewSchedule(kind="k", lane="scheduled", every_ms=3_600_000)
    made = await admin.put_schedule("nightly", body)
    assert await admin.describe_schedule("nightly") == made
    assert (await admin.list_schedules()).items == [made]
    assert (await admin.pause_schedule("nightly")).paused
    assert not (await admin.resume_schedule("nightly")).paused
    triggered = await admin.trigger_schedule("nightly")
    assert await admin.state(triggered.execution_id) == "waiting"
    assert made.next_at
    first = made.next_at - 7_200_000
    span = Backfill(first=first, last=made.next_at - 1)
    filled = await admin.backfill_schedule("nightly", span)
    assert filled == await admin.backfill_schedule("nightly", span)
    await admin.delete_schedule("nightly")
    with pytest.raises(NotFound):
        await admin.describe_schedule("nightly")


async def _work(world: World) -> None:
    admin, me = world.admin, "w-7"
    lanes = ("work",)
    worker = Registration(worker_id="w", worker_instance_id=me, lanes=lanes, ttl_ms=60_000)
    assert (await admin.register_worker(worker)).outcome == "registered"
    assert (await admin.heartbeat(me)).outcome == "refreshed"
    assert await admin.report_gone(me, ["nobody"]) == LeasesEnded(0)
    assert (await admin.watch(me, wait_ms=0)).held in (None, ())
    for _ in range(2):
        await world.submit("work")
    order = ClaimOrder(worker_id="w", worker_instance_id=me, lanes=lanes)
    claimed = await admin.claim(order)
    assert claimed is not None
    (claim,) = claimed.items
    fence = fence_of(claim)
    (kept,) = (await admin.renew(me, 60_000, [Renewal(**fence)])).items
    assert isinstance(kept, Renewed)
    assert await admin.report_progress(Progress(**fence, progress_pct=5)) == ProgressReported()
    frame = NewFrame(frame_type="t", payload=b"x")
    (put,) = await admin.append_frames([Output(**fence, attempt_index=0, frames=[frame])])
    assert isinstance(put, Appended)
    step = NewEntry(**fence, entry=JournalEntry("step", 1, "ab", b"out"))
    assert await admin.append_journal([step]) == [Kept(True)]
    new_budget = budgets.NewBudget(dimensions=["tokens"], hard_limits=[9], soft_limits=[0])
    budget_id = (await admin.create_budget(new_budget)).budget_id
    spent = UsageReport(**fence, budget_id=budget_id, dimensions={"tokens": 1})
    assert await admin.report_usages([spent]) == [budgets.Ok()]
    made = await admin.create_waitpoint(NewWaitpoint(**fence, expires_in_ms=60_000))
    paused = Suspend(
        **fence,
        op="wait",
        resume_condition=signal_set("go"),
        waitpoints=(UsePending(made.waitpoint_id),),
    )
    assert isinstance(await admin.suspend(paused), Suspended)
    new = NewGrant(lane_id="work", worker_instance_id=me, grant_ttl_ms=60_000)
    grant = await admin.claim_grant("w", new)
    assert grant is not None
    granted = await admin.claim_granted(
        GrantClaim(
            execution_id=grant.execution_id,
            grant_key=grant.grant_key,
            worker_id="w",
            worker_instance_id=me,
        )
    )
    flow_id = await admin.children_flow(granted.execution_id)
    child = await world.submit("idle", flow_id=flow_id, parent_id=granted.execution_id)
    give_up = CancelChildren(**fence_of(granted), children=(child,), reason="race lost")
    assert await admin.cancel_children(give_up) == ChildrenCancelled(1)
    done = await admin.finish([finish_of(granted, Complete())])
    assert done.items == [Finished(state="completed")]
    known = await admin.register_tasks(me, [NewTask(kind="report")])
    assert not isinstance(known.items[0], Exception)
    assert [one.kind for one in (await admin.list_tasks()).items] == ["report"]
    await admin.delete_task("report")
    assert (await admin.list_tasks()).items == []
    assert (await admin.leave(me)).outcome == "left"


async def _service(world: World) -> None:
    admin = world.admin
    worker = (await world.fabric.open()).worker
    await worker.register_worker(
        Registration(
            worker_id="w",
            worker_instance_id="w-1",
            lanes=("default",),
            capabilities=("gpu",),
            ttl_ms=60_000,
        )
    )
    (shown,) = (await admin.list_workers()).items
    assert (shown.worker_instance_id, shown.capabilities) == ("w-1", ("gpu",))
    described = await admin.describe()
    assert described.family == "memory"
    assert described.now > 0
    assert (await admin.partitions()).num_flow_partitions == 256
    rotated = await admin.rotate_waitpoint_hmac_secret(
        NewSecret(new_kid="k2", new_secret_hex="5e" * 32)
    )
    assert rotated.new_kid == "k2"


async def _tokens(world: World) -> None:
    admin = world.admin
    made = await admin.create_token(NewToken(name="ci", scopes=("read",)))
    assert made.token.startswith("ff_")
    (shown,) = (await admin.list_tokens()).items
    assert (shown.token_id, shown.name, shown.namespaces) == (made.token_id, "ci", None)
    await admin.revoke_token(made.token_id)
    with pytest.raises(NotFound):
        await admin.revoke_token(made.token_id)


PARTS: list[Callable[[World], Awaitable[None]]] = [
    _reads,
    _acts,
    _signals,
    _output,
    _flows,
    _built,
    _limits,
    _lanes,
    _schedules,
    _work,
    _service,
    _tokens,
]


async def test_every_method_works_and_reaches_every_route(
    fabric: FlowFabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[str] = set()
    called: set[str] = set()
    router, fetch = Router(ROUTES), Rest.fetch

    async def noted(rest: Rest, request: Request) -> Response:
        route = router.find(request.method, request.path.encode()).route
        assert route is not None, request
        asked.add(route.name)
        return await fetch(rest, request)

    monkeypatch.setattr(Rest, "fetch", noted)
    methods = {name for name, _ in inspect.getmembers(Admin) if not name.startswith("_")}

    class Spy:
        def __getattr__(self, name: str) -> Any:
            called.add(name)
            return getattr(fabric.admin, name)

    world = World(fabric)
    world.admin = Spy()  # type: ignore[assignment]
    for part in PARTS:
        await part(world)
    assert called == methods
    if (await fabric.open()).engine is None:
        assert asked >= {one.name for one in DECLARED} | {"get_result", "get_input"}
    else:
        assert asked == set(), "in this process the engine itself is asked"


async def test_refusals_are_the_errors_of_the_engine(fabric: FlowFabric) -> None:
    admin = fabric.admin
    with pytest.raises(ExecutionNotFound):
        await admin.describe_execution(NOBODY)
    with pytest.raises(InvalidInput, match="execution_id"):
        await admin.describe_execution("not an id")
    with pytest.raises(InvalidInput, match="limit"):
        await admin.search(Search(limit=0))
    with pytest.raises(InvalidInput, match="execution_kind"):
        await admin.submit(Submission(lane="x", kind="k" * 2_000))
    with pytest.raises(FlowNotFound):
        await admin.describe_flow(str(uuid4()))
    with pytest.raises(BudgetNotFound):
        await admin.describe_budget(str(uuid4()))
    world = World(fabric)
    with pytest.raises(ExecutionNotTerminal):
        await admin.replay(await world.submit())
