"""Manual claiming without a fabric: options and connection of such a program."""

import msgspec

from flowfabric.app import counts_of
from flowfabric.backend.base import Backend
from flowfabric.config import Settings
from flowfabric.core.partitions import PartitionCounts
from flowfabric.engine import engine_on
from flowfabric.errors import ConfigError, PartitionMismatch
from flowfabric.fabric.connection import Connection, connection_on, connector
from flowfabric.worker.calls import WorkerCalls
from flowfabric.worker.claiming import Claimer
from flowfabric.worker.worker_options import WorkerOptions, checked


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Who a worker is and what it takes. An instance id of one's own must be unique; without one
    it is made of host and process. Partition counts are those of the store unless given."""

    lanes: tuple[str, ...]
    worker_id: str = "flowfabric"
    worker_instance_id: str = ""
    namespace: str = "default"
    capabilities: tuple[str, ...] = ()
    lease_ttl_ms: int = 30_000
    max_concurrent_tasks: int = 1
    partition_config: PartitionCounts | None = None

    def options(self) -> WorkerOptions:
        return WorkerOptions(
            worker_id=self.worker_id,
            instance_id=self.worker_instance_id,
            namespace=self.namespace,
            lanes=tuple(self.lanes),
            capabilities=tuple(self.capabilities),
            concurrency=self.max_concurrent_tasks,
            lease_ms=self.lease_ttl_ms,
        )


async def connect(
    config: WorkerConfig,
    url: str | None = None,
    *,
    token: str | None = None,
    settings: Settings | None = None,
) -> Claimer:
    """Open a store or reach a server, and register; `close` closes all of it."""
    checked(config.options())
    connection = await connector(url, token, settings, duties=False)()
    try:
        if connection.engine is not None:
            _check_counts(config, connection.engine.deps.counts)
        return await _started(config, connection)
    except BaseException:
        await connection.close()
        raise


async def connect_with(config: WorkerConfig, backend: Backend) -> Claimer:
    """The same on an open store, wrapped or not, which the caller closes."""
    checked(config.options())
    stored = await counts_of(backend)
    counts = stored or config.partition_config
    if counts is None:
        raise ConfigError("worker.partition_config: the store has no counts; expected them here")
    _check_counts(config, counts)
    return await _started(config, connection_on(engine_on(backend, counts)))


def _check_counts(config: WorkerConfig, counts: PartitionCounts) -> None:
    if config.partition_config not in (None, counts):
        raise PartitionMismatch(f"partition_config: {config.partition_config}, stored: {counts}")


async def _started(config: WorkerConfig, connection: Connection) -> Claimer:
    async def calls() -> WorkerCalls:
        return connection.worker

    claimer = Claimer(calls, config.options(), connection.close)
    await claimer.start()
    return claimer
