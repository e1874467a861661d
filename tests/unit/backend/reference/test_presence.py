"""Who is there: entries live by signs of life and never come back by themselves."""

from typing import Any

from flowfabric.backend.reference.config import start_put
from flowfabric.backend.reference.presence import (
    start_heartbeat,
    start_leave,
    start_register,
    workers,
)
from flowfabric.backend.types import ConfigPut, Registered, Worker
from tests.unit.backend.reference.world import World

TTL_MS = 10_000


def worker(instance: str = "i1", worker_id: str = "pool", **fields: Any) -> Worker:
    return Worker(
        namespace="default",
        worker_instance_id=instance,
        worker_id=worker_id,
        ttl_ms=TTL_MS,
        **fields,
    )


def live(world: World, after: str = "", limit: int = 100) -> list[str]:
    found = world.read(workers, "default", after, limit)
    return [each.worker_instance_id for each in found]


def test_a_first_registration_and_a_second(world: World) -> None:
    began = world.clock()
    first = world.do(start_register, worker(lanes=("a",)))
    world.clock.advance(5)
    second = world.do(start_register, worker(lanes=("b",)))
    assert first == Registered("registered", began + TTL_MS)
    assert second == Registered("refreshed", began + 5 + TTL_MS)
    (entry,) = world.read(workers, "default", "", 10)
    assert (entry.lanes, entry.registered_at) == (("b",), began)


def test_an_instance_cannot_change_its_worker_while_it_lives(world: World) -> None:
    world.do(start_register, worker())
    assert world.do(start_register, worker(worker_id="other")).status == "reassigned"
    world.clock.advance(TTL_MS)
    assert world.do(start_register, worker(worker_id="other")).status == "registered"


def test_a_heartbeat_prolongs_but_never_revives(world: World) -> None:
    name = ("default", "i1")
    world.do(start_register, worker())
    world.clock.advance(TTL_MS - 1)
    beat = world.do(start_heartbeat, name)
    assert beat == Registered("refreshed", world.clock() + TTL_MS)
    world.clock.advance(TTL_MS)
    assert world.do(start_heartbeat, name).status == "not_registered"
    assert live(world) == []


def test_leaving_tells_whether_somebody_was_there(world: World) -> None:
    world.answers(start_register, worker("i1"), worker("i2"))
    world.clock.advance(TTL_MS - 1)
    world.do(start_heartbeat, ("default", "i2"))
    assert world.answers(start_leave, ("default", "i2"), ("default", "i2")) == [True, False]
    world.clock.advance(1)
    assert world.do(start_leave, ("default", "i1")) is False


def test_live_ones_are_listed_by_instance_in_pages(world: World) -> None:
    world.do(start_register, worker("gone"))
    world.clock.advance(TTL_MS)
    world.answers(start_register, *(worker(f"i{n}") for n in (3, 1, 2)))
    assert live(world) == ["i1", "i2", "i3"]
    assert live(world, limit=2) == ["i1", "i2"]
    assert live(world, after="i2") == ["i3"]
    assert live(world, limit=0) == []
    assert world.read(workers, "elsewhere", "", 10) == []


def test_register_and_heartbeat_tell_the_config_revision(world: World) -> None:
    world.answers(start_put, ConfigPut("a", 0, b"x"), ConfigPut("a", 1, b"x"))
    assert world.do(start_register, worker()).config_revision == 2
    world.do(start_put, ConfigPut("b", 0, b"x"))
    assert world.do(start_heartbeat, ("default", "i1")).config_revision == 3
    assert world.do(start_heartbeat, ("default", "nobody")).config_revision == 3
