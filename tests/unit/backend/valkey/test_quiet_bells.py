"""A lane's bell tells of work that is there for somebody: not of what the same call has taken."""

import msgspec

from flowfabric.backend.base import end_bell
from flowfabric.engine.finishing import Finish
from flowfabric.operations.workers import ClaimOrder, Complete
from tests.conformance.driver import Driver
from tests.conformance.graphs import chain
from tests.valkey_server import ValkeyServer

ORDER = ClaimOrder(worker_id="w", worker_instance_id="w-1", lanes=("default",))
RUNG = "cmdstat_publish:calls="
SOON_S = 30.0


def rings(server: ValkeyServer) -> int:
    for line in server.run("INFO", "commandstats").decode().splitlines():
        if line.startswith(RUNG):
            return int(line.removeprefix(RUNG).partition(",")[0])
    return 0


async def rung_by_a_finish(driver: Driver, server: ValkeyServer, lane: str) -> tuple[int, int]:
    """How often a finish rang that released one member, and how much it claimed from the lane."""
    flow = await driver.graph(chain("a", "b"))
    held = (await flow.take("a")).proof
    before = rings(server)
    order = msgspec.structs.replace(ORDER, lanes=(lane,))
    answer = await driver.engine.finishing.finish_and_claim([Finish(held, Complete())], order)
    return rings(server) - before, len(answer.claimed)


async def test_what_a_call_has_taken_itself_rings_no_bell(
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
    before = rings(server)
    await driver.engine.outcomes.complete(held)
    return rings(server) - before


async def test_the_end_of_one_execution_rings_for_those_who_listen_to_any(
    driver: Driver, server: ValkeyServer
) -> None:
    # The log is told in either case.
    assert await rung_by_an_end(driver, server) == 1
    bells = driver.engine.deps.store.backend.bells()
    other = bells.listen(end_bell((await driver.started()).execution_id))
    await other.begun(SOON_S)
    own = await driver.started()
    listening = bells.listen(end_bell(own.execution_id))
    await listening.begun(SOON_S)
    before = rings(server)
    await driver.engine.outcomes.complete(own.proof)
    assert await listening.wait(SOON_S)
    assert not other.take()
    # Its end and its stream, and the log.
    assert rings(server) - before == 3
