"""Tasks that workers register: which declaration counts, what is listed, and when one is gone."""

import asyncio
from typing import Any

import pytest

from flowfabric.backend.base import Backend
from flowfabric.backend.types import ConfigPut
from flowfabric.core.declared_tasks import KEPT_MS, MOST_BYTES, document_name
from flowfabric.engine import engine_on
from flowfabric.engine import tasks as engine_tasks
from flowfabric.errors import (
    FlowFabricError,
    InvalidInput,
    InvalidPolicyJson,
    NotFound,
    ResourceExhausted,
)
from flowfabric.operations.schedules import NewSchedule
from flowfabric.operations.tasks import NewTask, TaskInfo, TaskRegistered, Tasks
from flowfabric.operations.workers import Registration
from tests.clock import VirtualClock
from tests.conformance.driver import Driver, refused
from tests.proofs import proves

DAY = 86_400_000
SCHEMA = {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]}


async def register(
    driver: Driver, *tasks: NewTask, by: str = "w", **more: Any
) -> list[TaskRegistered | FlowFabricError]:
    done = await driver.engine.tasks.register_tasks(by, tasks, **more)
    return done.items


def task(kind: str = "send", **fields: Any) -> NewTask:
    return NewTask(kind=kind, **fields)


async def listed(driver: Driver, **asked: Any) -> list[TaskInfo]:
    return (await driver.engine.tasks.list_tasks(**asked)).items


async def one(driver: Driver, kind: str = "send") -> TaskInfo:
    (found,) = await listed(driver, kind=kind)
    return found


async def version(driver: Driver, kind: str = "send") -> int:
    """Of the document: how often it was written."""
    backend = driver.engine.deps.store.backend
    (found,) = await backend.config_get([document_name("default", kind)])
    return found.version if found else 0


@proves(Tasks.register_tasks, Tasks.list_tasks)
async def test_a_registered_task_is_listed_with_all_it_declares(driver: Driver) -> None:
    new = task(
        lane="mail",
        priority=3,
        tags={"team": "ops"},
        policy={"retry_policy": {"max_retries": 5}},
        delay_ms=100,
        idempotency_key="k",
        arguments=SCHEMA,
        result={"type": "null"},
        description="Sends it.",
    )
    assert await register(driver, new, task("other"), build="r1") == [TaskRegistered()] * 2
    now = await driver.engine.deps.store.backend.now()
    found = await one(driver)
    assert found == TaskInfo(
        kind="send",
        namespace="default",
        lane_id="mail",
        priority=3,
        tags={"team": "ops"},
        policy={"retry_policy": {"max_retries": 5}},
        delay_ms=100,
        idempotency_key="k",
        arguments=SCHEMA,
        result={"type": "null"},
        description="Sends it.",
        build="r1",
        worker_instance_id="w",
        started_at=now,
        registered_at=now,
        workers=0,
    )
    assert [each.kind for each in await listed(driver)] == ["other", "send"]
    assert await listed(driver, namespace="elsewhere") == []
    assert await listed(driver, kind="unknown") == []


async def test_a_list_goes_on_where_it_stopped(driver: Driver) -> None:
    names = [f"task {number:02}/é" for number in range(7)]
    await register(driver, *map(task, names))
    seen: list[str] = []
    cursor = ""
    while True:
        page = await driver.engine.tasks.list_tasks(cursor=cursor, limit=3)
        seen += [each.kind for each in page.items]
        cursor = page.next_cursor
        if not cursor:
            break
    assert seen == names


async def test_the_same_declaration_is_written_once(driver: Driver, clock: VirtualClock) -> None:
    await register(driver, task(), by="a")
    assert await version(driver) == 1
    clock.advance(1_000)
    assert await register(driver, task(), by="b") == [TaskRegistered()]
    assert await version(driver) == 1
    # But it is kept while its release is in use.
    clock.advance(DAY)
    await register(driver, task(), by="c")
    assert await version(driver) == 2


async def test_the_process_that_started_last_counts(driver: Driver, clock: VirtualClock) -> None:
    old, new = task(lane="old"), task(lane="new")
    first = await driver.engine.tasks.register_tasks("a", [old], build="r1")
    clock.advance(1_000)
    assert await register(driver, new, by="b", build="r2") == [TaskRegistered()]
    # The first process registers again, or a task of its own late: that changes nothing.
    before = await version(driver)
    again = await driver.engine.tasks.register_tasks("a", [old], started_at=first.started_at)
    assert again.items == [TaskRegistered(is_newest=False)]
    assert await version(driver) == before
    found = await one(driver)
    assert (found.lane_id, found.build) == ("new", "r2")
    (other,) = found.others
    assert (other.build, other.worker_instance_id, other.differs_in) == ("r1", "a", ("lane",))
    # A process of the first release that starts now counts again.
    clock.advance(1_000)
    assert await register(driver, old, by="c", build="r1") == [TaskRegistered()]
    found = await one(driver)
    assert (found.lane_id, found.worker_instance_id) == ("old", "c")
    assert [each.build for each in found.others] == ["r2"]


async def test_of_processes_that_started_together_one_counts_everywhere(driver: Driver) -> None:
    lanes = [f"lane-{number}" for number in range(5)]
    answers = await asyncio.gather(*(register(driver, task(lane=lane), by=lane) for lane in lanes))
    assert not [each for (each,) in answers if isinstance(each, FlowFabricError)]
    winner = (await one(driver)).lane_id
    for lane in reversed(lanes):
        await register(driver, task(lane=lane), by=lane)
    found = await one(driver)
    assert found.lane_id == winner
    assert len(found.others) == len(lanes) - 1


async def test_a_process_cannot_start_later_than_now(driver: Driver, clock: VirtualClock) -> None:
    await register(driver, task(lane="far"), started_at=2**52)
    clock.advance(1)
    await register(driver, task(lane="near"))
    assert (await one(driver)).lane_id == "near"


async def test_versions_have_entries_of_their_own(driver: Driver, clock: VirtualClock) -> None:
    await register(driver, task(version="1"), task(version="2", lane="b"))
    assert {(await one(driver)).version, (await one(driver)).others[0].version} == {"1", "2"}
    for number in range(30):
        clock.advance(1)
        await register(driver, task(version=f"v{number}"))
    found = await one(driver)
    assert found.version == "v29"
    assert [each.version for each in found.others] == [f"v{number}" for number in range(28, 9, -1)]


async def test_schemas_that_are_too_large_are_left_out(driver: Driver, clock: VirtualClock) -> None:
    large = {"type": "object", "title": "x" * MOST_BYTES}
    fits = {"type": "object", "title": "x" * (MOST_BYTES - 2_000)}
    assert await register(driver, task(arguments=large, result=SCHEMA)) == [
        TaskRegistered(schema_left_out=True)
    ]
    found = await one(driver)
    assert (found.arguments, found.result) == (None, None)
    # The schema of an older declaration gives way to that of the newest.
    for lane in ("a", "b"):
        clock.advance(1)
        assert await register(driver, task(lane=lane, arguments=fits)) == [TaskRegistered()]
    found = await one(driver)
    assert (found.lane_id, found.arguments) == ("b", fits)
    assert [each.differs_in for each in found.others] == [("lane",), ("lane",)]
    backend = driver.engine.deps.store.backend
    (document,) = await backend.config_get([document_name("default", "send")])
    assert document is not None
    assert len(document.body) <= MOST_BYTES + 100


@pytest.mark.parametrize(
    ("wrong", "error", "told"),
    [
        ({"kind": ""}, InvalidInput, "kind: empty"),
        ({"lane": "a,b"}, InvalidInput, "lane"),
        ({"policy": {"retries": 1}}, InvalidPolicyJson, "unknown_member:retries"),
        ({"delay_ms": -1}, InvalidInput, "delay_ms"),
        ({"arguments": []}, InvalidInput, "arguments: expected a JSON Schema, got list"),
        ({"result": {"const": {1, 2}.__iter__()}}, InvalidInput, "a schema is no JSON"),
        ({"description": "x" * 5_000}, InvalidInput, "description: too long"),
        ({"tags": {str(n): "x" * 1_000 for n in range(20)}}, InvalidInput, "tags"),
    ],
)
async def test_one_that_cannot_be_does_not_keep_the_others_out(
    driver: Driver, wrong: dict[str, Any], error: type[FlowFabricError], told: str
) -> None:
    fault, fine = await register(driver, NewTask(**{"kind": "wrong"} | wrong), task())
    assert isinstance(fault, error)
    assert told in str(fault)
    assert fine == TaskRegistered()
    assert [each.kind for each in await listed(driver)] == ["send"]


async def test_a_namespace_has_so_many_tasks(
    driver: Driver, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_tasks, "MOST_TASKS", 3)
    await register(driver, task("a"), task("b"))
    third, fourth = await register(driver, task("c"), task("d"))
    assert third == TaskRegistered()
    assert isinstance(fourth, ResourceExhausted)
    assert "tasks: namespace default has 3; delete unused ones" in str(fourth)
    # Those that are there may still change, and one that is gone makes room.
    clock.advance(1)
    assert await register(driver, task("a", lane="x")) == [TaskRegistered()]
    await driver.engine.tasks.delete_task("b")
    assert await register(driver, task("d")) == [TaskRegistered()]
    assert await register(driver, task("z"), namespace="other") == [TaskRegistered()]


@proves(Tasks.delete_task)
async def test_a_deleted_task_is_forgotten_until_it_is_registered(driver: Driver) -> None:
    await register(driver, task(), task("other"))
    await driver.engine.tasks.delete_task("send")
    assert [each.kind for each in await listed(driver)] == ["other"]
    for kind, namespace in (("send", "default"), ("other", "elsewhere")):
        with refused(NotFound, f"task {kind}"):
            await driver.engine.tasks.delete_task(kind, namespace)
    await register(driver, task())
    assert [each.kind for each in await listed(driver)] == ["other", "send"]


async def test_workers_that_are_alive_are_shown(driver: Driver, clock: VirtualClock) -> None:
    async def worker(name: str, kinds: tuple[str, ...] | None) -> None:
        await driver.engine.workers.register_worker(
            Registration(
                worker_id="w",
                worker_instance_id=name,
                lanes=("default",),
                kinds=kinds,
                ttl_ms=60_000,
            )
        )

    await worker("a", ("send",))
    await worker("b", ("send", "other"))
    await worker("every", None)
    await register(driver, task(lane="x"), by="gone")
    clock.advance(1)
    await register(driver, task(lane="y"), by="a")
    clock.advance(1)
    await register(driver, task(lane="z"), by="b")
    found = await one(driver)
    assert found.workers == 2
    assert [(each.worker_instance_id, each.is_live) for each in found.others] == [
        ("a", True),
        ("gone", False),
    ]


async def test_a_task_that_nobody_uses_is_forgotten(driver: Driver, clock: VirtualClock) -> None:
    await register(driver, task("unused"), task("scheduled"), task("running"), task("fresh"))
    await driver.engine.schedules.put("s", NewSchedule(kind="scheduled", every_ms=10 * KEPT_MS))
    clock.advance(KEPT_MS - DAY)
    await register(driver, task("fresh"))
    clock.advance(DAY)
    await driver.engine.workers.register_worker(
        Registration(
            worker_id="w",
            worker_instance_id="w",
            lanes=("default",),
            kinds=("running",),
            ttl_ms=600_000,
        )
    )
    result = await driver.sweep()
    assert result.of("tasks") == 3
    assert [each.kind for each in await listed(driver)] == ["fresh", "running", "scheduled"]
    # What named them is asked again a day later.
    assert (await driver.sweep()).of("tasks") == 0
    await driver.engine.schedules.delete("s")
    clock.advance(DAY)
    await driver.sweep()
    assert [each.kind for each in await listed(driver)] == ["fresh"]


async def test_a_namespace_that_cannot_be_read_keeps_its_tasks(
    driver: Driver, clock: VirtualClock
) -> None:
    await register(driver, task())
    await register(driver, task(), namespace="other")
    backend = driver.engine.deps.store.backend
    await backend.config_put([ConfigPut("schedule/default:broken", 0, b"no json")])
    clock.advance(KEPT_MS)
    result = await driver.sweep()
    assert (result.of("tasks"), result.of("tasks", "error")) == (1, 1)
    assert [each.kind for each in await listed(driver)] == ["send"]
    assert await listed(driver, namespace="other") == []


async def test_two_processes_that_register_at_once_both_count(
    backend: Backend, driver: Driver
) -> None:
    other = engine_on(backend)
    await asyncio.gather(
        *(register(driver, task(f"kind-{n}", lane="a"), by="a") for n in range(3)),
        *(
            other.tasks.register_tasks("b", [task(f"kind-{n}", lane="b") for n in range(3)])
            for _ in range(2)
        ),
    )
    assert [len(each.others) for each in await listed(driver)] == [1, 1, 1]
    await other.close()
