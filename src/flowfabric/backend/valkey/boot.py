"""What a server must be before we use it: kind, version, and that it keeps what it is given."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from flowfabric.backend.valkey.node import Node, Topology
from flowfabric.core.backoff import Backoff
from flowfabric.errors import (
    AuthFault,
    ClusterFault,
    FlowFabricError,
    InvalidInput,
    ProtocolFault,
    StoreTimeout,
    TransportError,
    Unavailable,
)

_log = logging.getLogger("flowfabric.backend.valkey")
_OLDEST: Final = (7, 2)
_BACKOFF: Final = Backoff(0.2, 5.0)
_LONGEST_LAG_S: Final = 10
_REPLICA_S: Final = 2.0
_SYNCED: Final = ("everysec", "always")


class Demands(msgspec.Struct, frozen=True):
    allow_redis: bool = False
    allow_volatile: bool = False


class Facts(msgspec.Struct, frozen=True):
    server_version: str
    durability: str


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """How long a server is waited for, and how time passes meanwhile."""

    budget_s: float = 60.0
    # A person who mistyped an address is told so after this long.
    silence_s: float = 2.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


_REAL: Final = Waits()


async def check_servers(topology: Topology, demands: Demands, waits: Waits = _REAL) -> Facts:
    """Refuse servers we cannot work on; one that is being upgraded is waited for."""
    with _telling_silence(topology, waits):
        version = await _awaited_version(topology, demands, waits)
    durability = [await _durability(node, demands) for node in topology.primaries()]
    for node in topology.primaries():
        await _warn_of_replicas(node)
    return Facts(version, "memory" if "memory" in durability else durability[0])


@contextmanager
def _telling_silence(topology: Topology, waits: Waits) -> Iterator[None]:
    """Warn while servers do not answer: they may be restarting, or the address may be wrong."""

    def tell() -> None:
        _log.warning(
            "%s: no usable answer for %g s; waiting up to %g s for it. Check the address",
            ", ".join(map(repr, topology.primaries())) or "valkey",
            waits.silence_s,
            waits.budget_s,
        )

    timer = asyncio.get_running_loop().call_later(waits.silence_s, tell)
    try:
        yield
    finally:
        timer.cancel()


async def _awaited_version(topology: Topology, demands: Demands, waits: Waits) -> str:
    end, failures = waits.clock() + waits.budget_s, 0
    while True:
        failures += 1
        pause = _BACKOFF.pause_s(failures)
        try:
            return await _look(topology, demands, max(end - waits.clock(), _BACKOFF.first_s))
        except (FlowFabricError, _TooOld) as fault:
            final = isinstance(fault, FlowFabricError) and not fault.retryable
            if final or waits.clock() + pause > end:
                raise Unavailable(str(fault)) if isinstance(fault, _TooOld) else fault from None
        await waits.sleep(pause)
        await _refreshed(topology)


async def _look(topology: Topology, demands: Demands, seconds: float) -> str:
    try:
        async with asyncio.timeout(seconds):
            return await _lowest_version(topology, demands)
    except TimeoutError:
        raise StoreTimeout(f"valkey: no answer within {seconds:.1f} s") from None


async def _refreshed(topology: Topology) -> None:
    try:
        await topology.refresh()
    except FlowFabricError as fault:
        if not fault.retryable:
            raise


class _TooOld(Exception):
    """May be over in a moment: a rolling upgrade."""


async def _lowest_version(topology: Topology, demands: Demands) -> str:
    versions = [await _version(node, demands) for node in topology.primaries()]
    if not versions:
        raise ClusterFault("valkey: no server of the cluster has any slots yet")
    versions += await _replica_versions(topology, demands)
    lowest = min(versions, key=_numbers)
    if _numbers(lowest) < _OLDEST:
        raise _TooOld(f"valkey: expected 7.2 or newer, got {lowest}; upgrade the server")
    return lowest


async def _replica_versions(topology: Topology, demands: Demands) -> list[str]:
    """Of all replicas that answer soon: each may become a primary."""
    login = topology.primaries()[0].login
    nodes = [Node(*address, login) for address in topology.replicas()]
    found = await asyncio.gather(*(_replica_version(node, demands) for node in nodes))
    return [version for version in found if version]


async def _replica_version(node: Node, demands: Demands) -> str:
    try:
        return await asyncio.wait_for(_version(node, demands), _REPLICA_S)
    except (TransportError, TimeoutError, _TooOld) as fault:
        _log.warning("%s is a replica and does not tell its version: %r", node, fault)
        return ""
    finally:
        await node.close()


def _numbers(version: str) -> tuple[int, int]:
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    return int(major), int(minor or 0)


async def _version(node: Node, demands: Demands) -> str:
    facts = await _info(node, "server")
    if version := facts.get("valkey_version"):
        return version
    version = facts.get("redis_version", "")
    if version and (facts.get("server_name", "").lower() == "valkey" or demands.allow_redis):
        return version
    if not version:
        raise _TooOld("valkey: the server does not tell its version")
    raise InvalidInput("the server is not Valkey; FF_ALLOW_REDIS=1 uses it at your own risk")


async def _info(node: Node, section: str) -> dict[str, str]:
    answer = await node.command("INFO", section)
    text = answer.decode() if isinstance(answer, bytes) else str(answer)
    lines = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, colon, value in lines if colon}


async def _durability(node: Node, demands: Demands) -> str:
    try:
        settings = await _settings(node, "maxmemory-policy", "appendonly", "appendfsync")
    except (AuthFault, ProtocolFault) as fault:
        if not demands.allow_volatile:
            raise InvalidInput(
                f"valkey {node.host}:{node.port}: its settings cannot be read ({fault.detail}); "
                "allow CONFIG GET, or add allow_volatile=true to the URL to trust it"
            ) from fault
        return "memory"
    if settings.get("maxmemory-policy", "noeviction") != "noeviction":
        raise InvalidInput(
            f"valkey {node.host}:{node.port}: maxmemory-policy must be noeviction, "
            "or executions vanish when memory is short"
        )
    synced = settings.get("appendfsync", "")
    if settings.get("appendonly") == "yes" and synced in _SYNCED:
        return "fsync" if synced == "always" else "fsync_1s"
    if not demands.allow_volatile:
        raise InvalidInput(
            f"valkey {node.host}:{node.port}: appendonly is off, so a restart loses executions; "
            "turn it on, or add allow_volatile=true to the URL"
        )
    _log.warning("%s keeps nothing over a restart", node)
    return "memory"


async def _warn_of_replicas(node: Node) -> None:
    """Say what a failover may lose; it is the operator's to decide."""
    found = await _info(node, "replication")
    if found.get("connected_slaves", "0") == "0":
        _log.warning("%s has no replica: when its disk is lost, so are its executions", node)
        return
    settings = await _settings(node, "min-replicas-to-write", "min-replicas-max-lag")
    lag = int(settings.get("min-replicas-max-lag", "0"))
    if settings.get("min-replicas-to-write", "0") == "0" or not 0 < lag <= _LONGEST_LAG_S:
        _log.warning(
            "%s may acknowledge what no replica has; set min-replicas-to-write to 1 "
            "and min-replicas-max-lag to %d",
            node,
            _LONGEST_LAG_S,
        )


async def _settings(node: Node, *names: str) -> dict[str, str]:
    answer = await node.command("CONFIG", "GET", *names)
    pairs: Any = answer.items() if isinstance(answer, dict) else ()
    return {name.decode(): value.decode() for name, value in pairs}
