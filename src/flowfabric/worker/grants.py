"""Grants in the hands of a worker: what can be wrong with one before anybody is asked."""

import time
from typing import Protocol

import msgspec

from flowfabric.core.ids import check_lane, partition_of
from flowfabric.core.partitions import PartitionKey, parse_partition_key
from flowfabric.errors import ConfigError, InvalidInput


class AnyGrant(Protocol):
    """A reservation, wherever it comes from: the engine, a server's answer, another process."""

    @property
    def execution_id(self) -> str: ...

    @property
    def partition_key(self) -> str: ...

    @property
    def grant_key(self) -> str: ...

    @property
    def expires_at_ms(self) -> int: ...

    @property
    def lane_id(self) -> str: ...


class GrantNotFound(msgspec.Struct, frozen=True):
    """The grant is unknown, was used, or is meant for another worker."""


def check_grant(grant: AnyGrant, execution_id: str, lane: str) -> None:
    """Refuse a grant that cannot be what the caller means."""
    try:
        check_lane(lane)
        key = parse_partition_key(grant.partition_key)
        expected = PartitionKey("flow", partition_of(grant.execution_id))
    except InvalidInput as fault:
        raise ConfigError(f"grant: {fault.detail}") from fault
    if key != expected:
        raise ConfigError(f"grant.partition_key: {key} is not that of the execution")
    if grant.execution_id != execution_id:
        raise ConfigError(f"grant.execution_id: for {grant.execution_id}, not {execution_id}")
    if grant.lane_id != lane:
        raise ConfigError(f"grant.lane_id: for {grant.lane_id!r}, not {lane!r}")
    if grant.expires_at_ms <= time.time() * 1000:
        raise ConfigError("grant.expires_at_ms: the grant has run out")
