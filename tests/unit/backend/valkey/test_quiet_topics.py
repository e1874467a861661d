"""A lane's topic is notified of work for others, not of what the same call has taken."""

import msgspec

from flowfabric.backend.base import end_topic
from flowfabric.engine.attempts.finishing import Finish
from flowfabric.operations.workers import ClaimOrder, Complete
from tests.conformance.driver import Driver
from tests.conformance.graphs import chain
from tests.valkey_server import ValkeyServer

ORDER = ClaimOrder(worker_id="w", worker_instance_id="w-1", lanes=("default",))
PUBLISHED = "cmdstat_publish:calls="
SOON_S = 30.0


def published(server: ValkeyServer) -> int:
    for line in server.run("INFO", "commandstats").decode().splitlines():
        if line.startswith(PUBLISHED):
            return int(line.removeprefix(PUBLISHED).partition(",")[0])
    return 0


async def rung_by_a_finish(driver: Driver, server: ValkeyServer, lane: str) -> tuple[int, int]:
    """Messages of a finish that released one member, and how much it claimed from the lane."""
    flow = await driver.graph(chain("a", "b"))
    held = (await flow.take("a")).proof
    before = published(server)
    order = msgspec.structs.replace(ORDER, lanes=(lane,))
    answer = await driver.engine.finishing.finish_and_claim([Finish(held, Complete())], order)
    return published(server) - before, len(answer.claimed)


async def test_what_a_call_has_taken_itself_is_not_notified(
    driver: Driver, server: ValkeyServer
) -> None:
    left, nothing = await rung_by_a_finish(driver, server, "elsewhere")
    await driver.claim()
    taken, one = await rung_by_a_finish(driver, server, "default")
    assert (nothing, one) == (0, 1)
    # The log is told in either case.
    assert (left, taken) == (2, 1)


async def rung_by_an_end(driver: Driver, server: ValkeyServer) -> int:
    held = (await driver.started()).proof
    before = published(server)
    await driver.engine.outcomes.complete(held)
    return published(server) - before


async def test_the_end_of_one_execution_rings_for_those_who_listen_to_any(
    driver: Driver, server: ValkeyServer
) -> None:
    # The log is told in either case.
    assert await rung_by_an_end(driver, server) == 1
    notifier = driver.engine.deps.store.backend.notifier()
    other = notifier.subscribe(end_topic((await driver.started()).execution_id))
    await other.wait_subscribed(SOON_S)
    own = await driver.started()
    subscription = notifier.subscribe(end_topic(own.execution_id))
    await subscription.wait_subscribed(SOON_S)
    before = published(server)
    await driver.engine.outcomes.complete(own.proof)
    assert await subscription.wait(SOON_S)
    assert not other.take()
    # Its end and its stream, and the log.
    assert published(server) - before == 3
