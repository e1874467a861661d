"""A store on Valkey: every mechanism is one function call per partition, or one for all of them on
a standalone server."""

from collections.abc import Callable, Sequence

import msgspec

from flowfabric.backend.base import Notifier, StoreCounters
from flowfabric.backend.types import CLUSTER_SLOTS, ClaimRequest, Description, Discrepancy, Finished
from flowfabric.backend.valkey import verifying
from flowfabric.backend.valkey.applying import ApplyMechanism
from flowfabric.backend.valkey.boot import Demands, Waits, check_servers
from flowfabric.backend.valkey.calls import Calls
from flowfabric.backend.valkey.claims import ClaimMechanism
from flowfabric.backend.valkey.connection import REQUEST_S
from flowfabric.backend.valkey.creation import CreateMechanism
from flowfabric.backend.valkey.due import DueMechanism
from flowfabric.backend.valkey.feed import FeedMechanism
from flowfabric.backend.valkey.functions import RETRY_S, Functions, Loads, Replication
from flowfabric.backend.valkey.library import INTERFACE
from flowfabric.backend.valkey.limit_store import LimitMechanism
from flowfabric.backend.valkey.node import Node, Standalone, Topology
from flowfabric.backend.valkey.notifier import StoreNotifier, ValkeyNotifier
from flowfabric.backend.valkey.presence import PresenceMechanism
from flowfabric.backend.valkey.purge import PurgeMechanism
from flowfabric.backend.valkey.sentinels import Watched, WatchedNode
from flowfabric.backend.valkey.streams import StreamMechanism
from flowfabric.core.ids import PartitionCounts
from flowfabric.core.plan import Plan
from flowfabric.core.version import VERSION
from flowfabric.errors import FlowFabricError, InvalidInput


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """How a store is used, besides where it is."""

    counts: PartitionCounts = PartitionCounts()
    searchable: frozenset[str] = frozenset()
    clock: Callable[[], int] | None = None
    demands: Demands = Demands()
    loads: Loads = "missing"
    # How long servers that are away are waited for.
    boot_timeout_s: float = 60.0
    # Whether changes wait until a replica has them.
    replicated: bool = False
    # How long a request is repeated that fails for a passing reason, and how long one may take.
    retry_s: float = RETRY_S
    request_s: float = REQUEST_S


def functions_of(topology: Topology, opening: Opening) -> Functions:
    return Functions(
        topology,
        test_mode=opening.clock is not None,
        loads=opening.loads,
        replication=Replication() if opening.replicated else None,
        retry_s=opening.retry_s,
        request_s=opening.request_s,
    )


def standalone(node: Node, opening: Opening) -> "ValkeyBackend":
    """A store on one server, whichever that is."""
    topology = Watched(node) if isinstance(node, WatchedNode) else Standalone(node)
    functions = functions_of(topology, opening)
    calls = Calls(functions, opening.counts, opening.clock, opening.searchable)
    return ValkeyBackend(calls, ValkeyNotifier(node, calls.counters), opening)


class ValkeyBackend(
    CreateMechanism,
    ApplyMechanism,
    ClaimMechanism,
    DueMechanism,
    PresenceMechanism,
    LimitMechanism,
    StreamMechanism,
    FeedMechanism,
    PurgeMechanism,
):
    def __init__(self, calls: Calls, notifier: StoreNotifier, opening: Opening) -> None:
        self._calls = calls
        self._notifier = notifier
        self._opening = opening
        self._functions = calls.functions
        self._topology = calls.topology
        self._server_version, self._durability = "", ""

    @property
    def calls(self) -> Calls:
        return self._calls

    @property
    def opening(self) -> Opening:
        return self._opening

    def describe(self) -> Description:
        cluster = self._topology.is_cluster
        return Description(
            family="valkey",
            tag=0x01,
            library_version=VERSION,
            server_version=self._server_version,
            interface=INTERFACE,
            layout=1,
            durability="replicated" if self._opening.replicated else self._durability,
            wakeup="pub/sub",
            spread=CLUSTER_SLOTS if cluster else "one server",
            lane_order="near strict" if cluster else "strict",
            event_order="per partition",
            # Few enough that the server works on one call while the process makes the next.
            together=32,
        )

    def counters(self) -> StoreCounters:
        return self._calls.counters

    def notifier(self) -> Notifier:
        return self._notifier

    async def prepare(self) -> None:
        await self._topology.open()
        waits = Waits(budget_s=self._opening.boot_timeout_s)
        facts = await check_servers(self._topology, self._opening.demands, waits)
        self._server_version, self._durability = facts.server_version, facts.durability
        await self._functions.prepare()
        await self._probe()
        self._notifier.start()

    async def _probe(self) -> None:
        """Functions build keys from the one that is declared; some services forbid that."""
        try:
            await self.config_get(["partitions"])
        except FlowFabricError as fault:
            if "undeclared" not in fault.detail:
                raise
            raise InvalidInput(
                "valkey: this service lets functions use declared keys only; ours build theirs: "
                "switch that restriction off or use another server"
            ) from fault

    async def finish(self, plans: Sequence[Plan], claim: ClaimRequest) -> Finished:
        if plans:
            return await super().finish(plans, claim)
        (claimed,) = await self.claim([claim])
        if isinstance(claimed, FlowFabricError):
            raise claimed
        return Finished((), claimed)

    async def refresh_hints(self) -> None:
        """On one server every step writes its own."""

    async def verify(self) -> list[Discrepancy]:
        return await verifying.verify(self._calls, await self.now())

    async def repair(self) -> None:
        """Write once more what follows from records, while nothing else runs."""
        await verifying.repair(self._calls, await self.now())

    async def ping(self) -> None:
        await self.now()

    async def now(self) -> int:
        return await self._calls.server_now()

    async def close(self) -> None:
        await self._notifier.close()
        await self._calls.settled()
        await self._topology.close()
