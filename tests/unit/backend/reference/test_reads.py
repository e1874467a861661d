"""Reads by id, by due time, and counts."""

import msgspec

from flowfabric.backend.reference.reads import count, due, queues, read
from flowfabric.backend.reference.tables import FLOWS, KEPT
from flowfabric.backend.types import DuePage, Queue, Seen, With
from flowfabric.core.events import LogEntry
from flowfabric.core.graph import Flow
from flowfabric.core.plan import Guard, Plan
from flowfabric.core.rules.operators import revoke
from tests.unit.backend.reference.world import FLOW, World


def seen(world: World, execution_id: str, *include: With) -> Seen:
    (found,) = world.read(read, [execution_id], frozenset(include))
    assert found is not None
    return found


def test_records_come_in_the_order_asked_for_and_unknown_ones_as_none(world: World) -> None:
    first, second = world.create(), world.create()
    found = world.read(read, [second, "{fp:0}:nobody", first, second], frozenset())
    ids = [each.record.execution_id if each else None for each in found]
    assert ids == [second, None, first, second]


def test_only_what_is_asked_for_comes_beside_a_record(world: World) -> None:
    done = world.complete(world.started(input=b"in"), b"out")
    bare = seen(world, done.execution_id)
    assert bare == Seen(record=done, now=world.clock())
    full = seen(world, done.execution_id, "input", "result", "attempts", "history")
    assert (full.input, full.result) == (b"in", b"out")
    assert [attempt.state for attempt in full.attempts] == ["ended_success"]
    assert [entry.event for entry in full.history] == ["acquired", "released"]


def test_the_open_attempt_is_listed_behind_the_ended_ones(world: World) -> None:
    lost = world.started()
    world.apply(revoke(lost, "operator"))
    (held,) = world.claim()
    attempts = seen(world, held.execution_id, "attempts").attempts
    assert [(each.index, each.state) for each in attempts] == [
        (0, "interrupted_reclaimed"),
        (1, "started"),
    ]


def test_documents_come_by_name(world: World) -> None:
    own = world.create()
    plan = Plan(
        target=own,
        rule="waitpoint",
        guard=Guard(frozenset({"waiting"})),
        documents={"wp/b": b"2", "wp/a": b"1", "wp": b"3", "wq": b"4"},
    )
    world.apply(plan)

    def named(*names: str) -> dict[str, bytes]:
        (found,) = world.read(read, [own], frozenset(), {own: names})
        assert found is not None
        return {name: document.body for name, document in found.documents.items()}

    assert named() == {}
    assert named("wp/b", "none") == {"wp/b": b"2"}
    assert named("wp/*", "wq") == {"wp/a": b"1", "wp/b": b"2", "wq": b"4"}
    assert list(named("*")) == ["wp", "wp/a", "wp/b", "wq"]


def test_a_member_is_read_with_its_group_edges_and_upstreams(world: World) -> None:
    source, target = world.graph((0, 1), members=2)
    (held,) = world.claim()
    world.complete(held, b"result")
    found = seen(world, target, "group", "upstreams")
    assert found.group is not None
    assert (found.group.state, found.group.succeeded) == ("satisfied", 1)
    assert [edge.source for edge in found.incoming] == [source]
    assert [(each.execution_id, each.outcome) for each in found.upstreams] == [(source, "success")]


def due_ids(page: DuePage) -> list[str]:
    return [record.execution_id for record in page.records]


def test_due_records_come_by_time_then_id_strictly_behind_a_place(world: World) -> None:
    now = world.clock()
    late, early, same, future = (world.create(delay_until=now + ms) for ms in (20, 10, 10, 1_000))
    assert due_ids(world.read(due, 10)) == []
    world.clock.advance(20)
    assert due_ids(world.read(due, 10)) == [early, same, late]
    page = world.read(due, 2)
    assert due_ids(page) == [early, same]
    assert page.next_after == (now + 10, same)
    last = world.read(due, 2, page.next_after)
    assert (due_ids(last), last.next_after) == ([late], None)
    assert future not in due_ids(world.read(due, 10))


def test_due_records_of_some_partitions_are_not_hidden_by_others(world: World) -> None:
    now = world.clock()
    for _ in range(7):
        world.create(partition=1, delay_until=now + 1)
    wanted = world.create(partition=2, delay_until=now + 2)
    world.clock.advance(5)
    assert due_ids(world.read(due, 2, None, frozenset({2}))) == [wanted]


def test_due_flows_come_with_the_records_and_have_their_own_places(world: World) -> None:
    now = world.clock()
    tx = world.begin()
    for number in range(3):
        flow = Flow(flow_id=f"f{number}", namespace="default", due_at=now + number)
        tx.put(FLOWS, flow.flow_id, flow)
    tx.put(FLOWS, "idle", Flow(flow_id="idle", namespace="default"))
    tx.flush()
    world.clock.advance(1)
    first = world.read(due, 1)
    assert ([flow.flow_id for flow in first.flows], first.next_after) == (["f0"], (now, "f0"))
    assert [flow.flow_id for flow in world.read(due, 9, first.next_after).flows] == ["f1"]


def test_a_flow_is_due_where_its_members_are(world: World) -> None:
    world.graph((0, 1), members=2)
    tx = world.begin()
    flow = tx.flow(FLOW)
    assert flow is not None
    tx.put(FLOWS, FLOW, msgspec.structs.replace(flow, due_at=world.clock()))
    tx.flush()
    assert len(world.read(due, 9, None, frozenset({0})).flows) == 1
    assert world.read(due, 9, None, frozenset({1})).flows == ()


def test_counts_are_by_state_and_reason_of_a_lane_or_all(world: World) -> None:
    world.graph((0, 1), members=2)
    world.create(lane="other")
    world.create(namespace="elsewhere")
    assert world.read(count, "default", "main") == {"waiting": 1, "blocked:dependencies": 1}
    assert world.read(count, "default", "") == {"waiting": 2, "blocked:dependencies": 1}
    world.claim()
    assert world.read(count, "default", "main") == {"active": 1, "blocked:dependencies": 1}
    assert world.read(count, "nowhere", "") == {}


def test_queues_tell_depth_and_best_rank_per_requirement_set(world: World) -> None:
    world.create(priority=5)
    low = world.record(world.create())
    rare = world.record(world.create(req_set="gpu"))
    held = world.claim()[0]
    assert held.priority == 5
    assert world.read(queues, "default", "main") == [
        Queue("-", 1, low.rank),
        Queue("gpu", 1, rare.rank),
    ]


def test_of_a_long_history_the_last_thousand_are_shown(world: World) -> None:
    held = world.started()
    tx = world.begin()
    for number in range(1_001):
        entry = LogEntry(at=world.clock() + number, kind="revoked", families=("lease",))
        tx.put(KEPT, (held.execution_id, 100 + number), entry)
    tx.flush()
    history = seen(world, held.execution_id, "history").history
    assert len(history) == 1_000
    assert history[-1].ts == world.clock() + 1_000
