"""Workers whose processes have ended: whoever sees it reports it, and their leases end at once."""

import pytest

from flowfabric.errors import InvalidInput, LeaseRevoked
from flowfabric.operations.workers import (
    Complete,
    Finish,
    LeasesEnded,
    Neighbour,
    NotRegistered,
    Registered,
    Registration,
    Workers,
)
from tests.conformance.driver import Driver, refused
from tests.conformance.worker_calls import calls_on, claimed, fence
from tests.proofs import proves

HERE = "boot/pids/1000"
DEAD, NEW = "pool-1", "pool-2"


async def register(
    driver: Driver, instance: str, process: str, namespace: str = "default"
) -> Registered:
    answer = await driver.engine.workers.register_worker(
        Registration(
            worker_id="pool",
            worker_instance_id=instance,
            lanes=("default",),
            ttl_ms=60_000,
            namespace=namespace,
            process=process,
        )
    )
    assert isinstance(answer, Registered)
    return answer


async def report(driver: Driver, *gone: str) -> LeasesEnded | NotRegistered:
    return await calls_on(driver.engine).report_gone(NEW, list(gone))


@proves(Workers.report_gone)
async def test_the_leases_of_a_process_that_ended_end_at_once(driver: Driver) -> None:
    calls = calls_on(driver.engine)
    await register(driver, DEAD, f"{HERE}/1/5")
    own = [await driver.submit() for _ in range(3)]
    first, second, third = [await claimed(driver.engine) for _ in own]
    done = Finish(**fence(third), op="end", outcome=Complete(b"x"))
    await calls.finish([done])
    new = await register(driver, NEW, f"{HERE}/2/9")
    assert new.neighbours == (Neighbour(DEAD, f"{HERE}/1/5"),)
    assert await report(driver, DEAD) == LeasesEnded(2)
    for claim in (first, second):
        record = await driver.record(claim.execution_id)
        assert (record.state, record.next) == ("lost", "reclaim")
        assert record.detail == "lease revoked: the process of its worker has ended"
    (late,) = (await calls.finish([Finish(**fence(first), op="end", outcome=Complete(b""))])).items
    assert isinstance(late, LeaseRevoked)
    assert [one.worker_instance_id for one in await driver.engine.workers.live("default")] == [NEW]
    assert await report(driver, DEAD) == LeasesEnded(0)


@pytest.mark.parametrize(
    "process",
    ["", "boot", f"{HERE}/2/9", "other/pids/1000/1/5", "boot/other/1000/1/5", "boot/pids/0/1/5"],
    ids=["untold", "malformed", "same process", "other host", "other container", "other user"],
)
async def test_only_who_can_see_a_process_may_report_it(driver: Driver, process: str) -> None:
    await register(driver, DEAD, process)
    await driver.submit()
    claim = await claimed(driver.engine)
    assert (await register(driver, NEW, f"{HERE}/2/9")).neighbours == ()
    assert await report(driver, DEAD, "nobody") == LeasesEnded(0)
    assert (await driver.record(claim.execution_id)).state == "active"


async def test_who_is_not_registered_reports_nothing(driver: Driver) -> None:
    await register(driver, DEAD, f"{HERE}/1/5")
    await driver.submit()
    claim = await claimed(driver.engine)
    assert await report(driver, DEAD) == NotRegistered()
    await register(driver, NEW, "")
    assert await report(driver, DEAD) == LeasesEnded(0)
    assert (await driver.record(claim.execution_id)).state == "active"


async def test_another_namespace_is_not_seen(driver: Driver) -> None:
    await register(driver, DEAD, f"{HERE}/1/5", "shop")
    assert (await register(driver, NEW, f"{HERE}/2/9")).neighbours == ()
    assert await report(driver, DEAD) == LeasesEnded(0)
    assert await driver.engine.workers.live("shop") != ()


@pytest.mark.parametrize(("instance", "namespace"), [(NEW, "\0"), (NEW, ""), ("a b", "default")])
async def test_a_report_names_a_worker_and_its_namespace(
    driver: Driver, instance: str, namespace: str
) -> None:
    with refused(InvalidInput):
        await driver.engine.leases.report_gone(instance, [DEAD], namespace)


async def test_a_report_has_a_bound(driver: Driver) -> None:
    await register(driver, NEW, f"{HERE}/2/9")
    with refused(InvalidInput):
        await report(driver, *(f"w-{n}" for n in range(101)))
