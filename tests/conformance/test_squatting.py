"""Nobody can take an id or a key that the engine will need for somebody else."""

import asyncio

import msgspec
import pytest

from flowfabric.backend.base import Backend
from flowfabric.core.schedules import fire_key, fire_uuid
from flowfabric.engine import engine_on
from flowfabric.engine.flows.graphs import flow_id_for
from flowfabric.engine.secret import DOCUMENT
from flowfabric.errors import Conflict
from flowfabric.operations.executions import Submission
from flowfabric.operations.flows import GraphNode, GraphSubmission
from flowfabric.operations.schedules import NewSchedule
from tests.conformance.driver import Driver, refused

GUESS = bytes(32)


def graph(namespace: str, *, key: str = "", flow_id: str = "") -> GraphSubmission:
    nodes = (GraphNode(name="only", kind="work"),)
    return GraphSubmission(nodes=nodes, namespace=namespace, idempotency_key=key, flow_id=flow_id)


async def test_the_ids_of_a_flow_and_its_nodes_follow_from_a_secret(driver: Driver) -> None:
    graphs = driver.engine.graphs
    guess = flow_id_for(GUESS, "b", "nightly")
    await graphs.submit_graph(graph("a", flow_id=guess))
    own = await graphs.submit_graph(graph("b", key="nightly"))
    assert own.is_new
    assert own.flow_id != guess
    again = await graphs.submit_graph(graph("b", key="nightly"))
    assert (again.is_new, again.flow_id, again.executions) == (False, own.flow_id, own.executions)
    # Whoever knows the id of a flow cannot tell those of its nodes.
    stem = own.executions["only"].rpartition(":")[2][:-8]
    assert stem not in {flow_id_for(GUESS, "nodes", own.flow_id)[:-8], own.flow_id[:-8]}


async def test_the_same_names_make_other_ids_on_another_store(driver: Driver) -> None:
    secret = await driver.engine.deps.secret.get()
    assert len(secret) >= 32
    assert flow_id_for(secret, "b", "nightly") != flow_id_for(GUESS, "b", "nightly")
    assert fire_uuid(secret, "b", "s", 1) != fire_uuid(GUESS, "b", "s", 1)


async def test_processes_agree_on_the_secret_of_their_store(
    driver: Driver, backend: Backend
) -> None:
    engines = [engine_on(backend) for _ in range(8)]
    found = await asyncio.gather(*(one.deps.secret.get() for one in engines))
    assert {*found} == {await driver.engine.deps.secret.get()}
    await asyncio.gather(*(one.close() for one in engines))


async def test_the_secret_is_not_in_what_is_printed(driver: Driver, backend: Backend) -> None:
    secret = (await driver.engine.deps.secret.get()).hex()
    (document,) = await backend.config_get([DOCUMENT])
    assert secret.encode() in document.body  # type: ignore[union-attr]
    assert secret not in repr(document)
    assert secret not in repr(driver.engine.deps.secret)


async def test_a_schedule_fires_although_its_ids_were_guessed(driver: Driver) -> None:
    made = NewSchedule(kind="work", namespace="b", every_ms=60_000)
    schedules = driver.engine.schedules
    planned = (await schedules.put("nightly", made)).next_at
    key = fire_key("nightly", planned)
    uuid = fire_uuid(GUESS, "b", "nightly", planned)
    part = driver.engine.deps.counts.of_key("b", key)
    await driver.submit(execution_id=f"{{fp:{part}}}:{uuid}", namespace="a")
    await driver.pass_time(60_000)
    last = (await schedules.get("nightly", "b")).last_execution_id
    assert last
    assert uuid not in last
    assert (await driver.record(last)).namespace == "b"


# ---- what is no duplicate

KEYED = Submission(kind="work", namespace="a", idempotency_key="once", input=b"1")


@pytest.mark.parametrize(
    ("changed", "detail"),
    [
        ({"kind": "other"}, "idempotency_key: it was used for another execution_kind"),
        ({"input": b"2"}, "idempotency_key: it was used with another input_payload"),
        ({"input": b""}, "idempotency_key: it was used with another input_payload"),
    ],
)
async def test_a_key_stands_for_one_payload(
    changed: dict[str, object], detail: str, driver: Driver
) -> None:
    create = driver.engine.executions.create
    first = await create(KEYED)
    with refused(Conflict, detail):
        await create(msgspec.structs.replace(KEYED, **changed))
    (item,) = await driver.engine.executions.create_many(
        [msgspec.structs.replace(KEYED, **changed)]
    )
    assert isinstance(item, Conflict)
    again = await create(KEYED)
    assert (again.is_new, again.execution_id) == (False, first.execution_id)


@pytest.mark.parametrize(
    ("changed", "detail"),
    [
        ({"namespace": "b"}, "execution_id: it is in use"),
        ({"kind": "other"}, "execution_id: it was used for another execution_kind"),
    ],
)
async def test_an_id_stands_for_one_execution(
    changed: dict[str, object], detail: str, driver: Driver
) -> None:
    create = driver.engine.executions.create
    asked = Submission(kind="work", namespace="a", input=b"1")
    own = (await create(asked)).execution_id
    again = msgspec.structs.replace(asked, execution_id=own, input=b"2")
    assert not (await create(again)).is_new
    with refused(Conflict, detail):
        await create(msgspec.structs.replace(again, **changed))


async def test_a_key_of_another_namespace_is_another_key(driver: Driver) -> None:
    create = driver.engine.executions.create
    first = await create(KEYED)
    other = await create(msgspec.structs.replace(KEYED, namespace="b", input=b"2"))
    assert other.is_new
    assert other.execution_id != first.execution_id


async def test_a_graph_with_another_payload_is_another_graph(driver: Driver) -> None:
    graphs = driver.engine.graphs
    await graphs.submit_graph(graph("a", key="once"))
    nodes = (GraphNode(name="only", kind="work", input=b"other"),)
    with refused(Conflict):
        await graphs.submit_graph(
            GraphSubmission(nodes=nodes, namespace="a", idempotency_key="once")
        )
