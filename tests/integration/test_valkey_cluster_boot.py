"""One server of a cluster that is not fit for a store is enough to refuse it."""

from collections.abc import Iterator

import msgspec
import pytest

from flowfabric.config import Settings
from flowfabric.core.ids import PartitionCounts
from flowfabric.core.tokens import Secret
from flowfabric.errors import AuthFault, FlowFabricError, PartitionMismatch, ProtocolFault
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import ClaimOrder
from tests.chaos.load import engine_at
from tests.chaos.valkey_load import settings_for
from tests.valkey_server import ValkeyCluster

PASSWORD = "correct horse battery staple"
OURS = (
    *("~ff:*", "&ff:*", "+@all", "-@dangerous", "+info", "+config|get", "+function", "+wait"),
    "+cluster|slots",
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[ValkeyCluster]:
    started = ValkeyCluster()
    yield started
    started.end()


@pytest.fixture
def settings(cluster: ValkeyCluster) -> Settings:
    cluster.clean()
    return settings_for(cluster.primaries[0], cluster=True)


async def refusal(settings: Settings) -> FlowFabricError:
    with pytest.raises(FlowFabricError) as caught:
        async with engine_at(settings):
            pass
    assert not caught.value.retryable
    return caught.value


async def test_a_cluster_must_be_called_one(cluster: ValkeyCluster) -> None:
    fault = await refusal(settings_for(cluster.primaries[0]))
    assert isinstance(fault, ProtocolFault)
    assert "valkey+cluster://" in str(fault)


@pytest.mark.parametrize(
    ("name", "bad", "good", "told"),
    [
        ("maxmemory-policy", "allkeys-lru", "noeviction", "maxmemory-policy must be noeviction"),
        ("appendonly", "no", "yes", "allow_volatile=true"),
    ],
)
async def test_every_server_must_keep_what_it_is_given(
    cluster: ValkeyCluster, settings: Settings, name: str, bad: str, good: str, told: str
) -> None:
    last = cluster.primaries[-1]
    last.expect("CONFIG", "SET", name, bad)
    fault = await refusal(settings)
    last.expect("CONFIG", "SET", name, good)
    assert told in str(fault)
    assert str(last.port) in str(fault)


async def test_other_partition_counts_are_refused(settings: Settings) -> None:
    async with engine_at(settings):
        pass
    other = msgspec.structs.replace(settings, counts=PartitionCounts(flow=16))
    assert isinstance(await refusal(other), PartitionMismatch)


async def test_a_shared_store_needs_a_chosen_secret(settings: Settings) -> None:
    fault = await refusal(msgspec.structs.replace(settings, waitpoint_secret=Secret("")))
    assert "FF_WAITPOINT_HMAC_SECRET" in str(fault)


def entered_as(settings: Settings, user: str, password: str) -> Settings:
    store = msgspec.structs.replace(settings.store, user=user, password=Secret(password))
    return msgspec.structs.replace(settings, store=store)


async def test_a_user_needs_only_our_keys_channels_and_commands(
    cluster: ValkeyCluster, settings: Settings
) -> None:
    for server in cluster.primaries:
        server.expect("ACL", "SETUSER", "flow", "on", f">{PASSWORD}", *OURS)
    async with engine_at(entered_as(settings, "flow", PASSWORD)) as engine:
        made = await engine.executions.create(Submission(kind="k"))
        order = ClaimOrder(
            worker_id="w", worker_instance_id="w1", lanes=("default",), wait_ms=5_000
        )
        (claimed,) = await engine.claims.claim(order)
        assert claimed.execution_id == made.execution_id
        await engine.outcomes.complete(claimed.proof)


async def test_one_server_that_does_not_know_us_refuses_the_cluster(
    cluster: ValkeyCluster, settings: Settings
) -> None:
    for server in cluster.primaries:
        server.expect("ACL", "SETUSER", "flow", "on", "resetpass", f">{PASSWORD}", *OURS)
    cluster.primaries[-1].expect("ACL", "SETUSER", "flow", "on", "resetpass", ">other")
    fault = await refusal(entered_as(settings, "flow", PASSWORD))
    assert isinstance(fault, AuthFault)
    assert PASSWORD not in str(fault)
