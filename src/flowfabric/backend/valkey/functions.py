"""Calling functions, and having them loaded wherever they are called."""

import asyncio
import logging
import random
import re
from typing import Any, Final, Literal

import libvalkey

from flowfabric.backend.base import StoreCounters
from flowfabric.backend.moving import MARKER, marker_of
from flowfabric.backend.single_flight import SingleFlight
from flowfabric.backend.valkey.connection import REQUEST_S, Late
from flowfabric.backend.valkey.faults import (
    fault_of,
    is_missing_function,
    is_unsettled,
    redirect_of,
)
from flowfabric.backend.valkey.keys import CONFIG, stored_key, tag_of
from flowfabric.backend.valkey.library import INTERFACE, NAME, library
from flowfabric.backend.valkey.node import Node, Topology
from flowfabric.core.backoff import Backoff
from flowfabric.errors import (
    Bug,
    ClusterFault,
    FlowFabricError,
    ProtocolFault,
    ScriptNotLoaded,
    StoreTimeout,
    TransportError,
    TransportFault,
)

RETRY_S: Final = 10.0
_BACKOFF: Final = Backoff(0.02, 0.5)


class RetryWindow:
    def __init__(self, seconds: float) -> None:
        self._end = asyncio.get_running_loop().time() + seconds
        self._failures = 0

    async def wait(self) -> bool:
        """Let some time pass, more each time; False when there is none left."""
        self._failures += 1
        if asyncio.get_running_loop().time() + _BACKOFF.pause_s(self._failures) > self._end:
            return False
        await asyncio.sleep(_BACKOFF.pause_s(self._failures, random.random()))
        return True


_log = logging.getLogger("flowfabric.backend.valkey")
# Functions whose changes are worth the wait.
REPLICATED: Final = frozenset(
    {"create", "graph", "apply", "cancel_flow", "claim", "lease", "commit"}
)
_WAIT_MS: Final = 1_000


class Replication:
    """A replica that lags is a warning, never an error: what was written, was written."""

    def __init__(self) -> None:
        self._confirming: dict[Node, asyncio.Task[None]] = {}

    async def confirm(self, node: Node) -> None:
        """Calls that end in one turn of the loop share a wait: it covers all their connection
        wrote."""
        confirming = self._confirming.get(node)
        if confirming is None:
            confirming = self._confirming[node] = asyncio.ensure_future(_confirm(node))
            asyncio.get_running_loop().call_soon(self._confirming.pop, node, None)
        await asyncio.shield(confirming)


async def _confirm(node: Node) -> None:
    try:
        count = await node.run("WAIT", 1, _WAIT_MS)
    except TransportError as fault:
        count = fault
    if not isinstance(count, int) or count < 1:
        _log.warning("%s: no replica has confirmed the last writes within %d ms", node, _WAIT_MS)


_NUMBERS: Final = re.compile(r"ff(\d+)_version")
_LOAD_TRIES: Final = 6
_LOAD_BACKOFF: Final = Backoff(0.5, 7.0)
_MOST_REDIRECTS: Final = 5

# When the library is loaded: where it is missing or too old, always, or by others only.
Loads = Literal["missing", "always", "never"]
# An error a server answered, or what kept it from answering.
_Problem = Exception
_UNHEARD: Final = (TransportFault, ClusterFault, StoreTimeout)


class Functions:
    """`ask` has one function run where its key lives, wherever that may be by then."""

    def __init__(
        self,
        topology: Topology,
        *,
        test_mode: bool,
        loads: Loads = "missing",
        replication: Replication | None = None,
        retry_s: float = RETRY_S,
        request_s: float = REQUEST_S,
    ) -> None:
        """A request that fails for a passing reason is repeated for `retry_s`."""
        self.topology = topology
        self._text, self.version = library(test_mode=test_mode)
        self._loads_when = loads
        self.replication = replication
        self.counters = StoreCounters()
        self.retry_s = retry_s
        self._request_s = request_s
        self._reloading = SingleFlight("loading the library", self._reload)

    @property
    def _may_load(self) -> bool:
        return self._loads_when != "never"

    async def prepare(self) -> None:
        """Load the library on every primary that has none, or an older one, if we may."""
        for node in self.topology.primaries():
            found = await self._version_on(node)
            if self._loads_when != "always" and is_enough(found, self.version):
                continue
            await self._refuse_moved()
            if self._loads_when == "never":
                raise _absent(node, found, self.version)
            await self.load(node)

    async def ask(
        self, key: str, request: bytes, retry_s: float | None = None, late: Late | None = None
    ) -> Any:
        """The answer to a packed request of one slot; errors are raised as ours. A
        caller with a retry time of its own does not wait for an unresponsive server either."""
        if retry_s is not None and late is None:
            late = ignore
        try:
            answer = await self.topology.node_of(key).send(request, late)
        except _UNHEARD as fault:
            answer = fault
        if not isinstance(answer, Exception):
            return answer
        seconds = self.retry_s if retry_s is None else retry_s
        if isinstance(answer, StoreTimeout):
            seconds -= self._request_s
        return await self._persist(request, answer, _Trial(self.topology, key, seconds, late))

    async def _persist(self, request: bytes, problem: _Problem, trial: "_Trial") -> Any:
        """Repeat a request that met a surprise: whatever we send may safely be done twice."""
        while True:
            try:
                if self._may_load and is_missing_function(problem) and not trial.has_loaded:
                    # It cannot have run.
                    await self._reloading.get(trial.node)
                    trial.has_loaded = True
                else:
                    await trial.prepare(problem)
                answer = await trial.send(request)
            except _UNHEARD as fault:
                if fault is problem:
                    raise
                problem = fault
                continue
            if not isinstance(answer, libvalkey.ReplyError):
                return answer
            problem = answer

    async def _reload(self, node: Node) -> None:
        await self._refuse_moved()
        _log.warning("%s: functions are missing, loading the library", node)
        # Callers are waiting; each has a limit of its own.
        await self.load(node, tries=1)
        self.counters.reloads += 1

    async def document(self, name: str) -> bytes | None:
        """A config document, read without functions."""
        key = stored_key("config", tag_of(CONFIG))
        value = await self.ask(key, libvalkey.pack_command(("HGET", key, name)))
        return value.split(b" ", 2)[2] if value is not None else None

    async def _refuse_moved(self) -> None:
        """Functions are not loaded where they were taken away: it is the source of a move."""
        marker = marker_of(await self.document(MARKER))
        if marker is not None and marker.role == "source":
            raise marker.refusal("valkey")

    async def load(self, node: Node, tries: int = _LOAD_TRIES) -> None:
        await self._check_number(node)
        for failures in range(1, tries + 1):
            try:
                answer = await node.run("FUNCTION", "LOAD", "REPLACE", self._text)
            except (TransportFault, StoreTimeout) as fault:
                answer = fault
            if not isinstance(answer, Exception):
                return
            if str(answer).startswith("READONLY"):
                await _log_view(self.topology, node)
            if failures == tries or not _is_passing(answer):
                raise _load_fault(answer, node)
            await asyncio.sleep(_LOAD_BACKOFF.pause_s(failures))
            await refreshed(self.topology)

    async def _check_number(self, node: Node) -> None:
        """Leave a library alone that has left our number behind: others use it."""
        answer = await node.run("FUNCTION", "LIST", "LIBRARYNAME", NAME)
        if isinstance(answer, libvalkey.ReplyError):
            raise fault_of(answer, node.name)
        found = {int(number) for number in _NUMBERS.findall(repr(answer))}
        if found and INTERFACE not in found and max(found) > INTERFACE:
            raise ProtocolFault(
                f"{node.name}: its functions have number {max(found)}, this "
                f"release calls number {INTERFACE}; upgrade this process"
            )

    async def _version_on(self, node: Node) -> str:
        answer = await node.run("FCALL_RO", f"ff{INTERFACE}_version", 0)
        if isinstance(answer, libvalkey.ReplyError):
            if is_missing_function(answer):
                return ""
            raise fault_of(answer, node.name)
        return bytes(answer).decode()


class _Trial:
    """The repeats of one request: where it goes next, and how long it still may."""

    def __init__(
        self, topology: Topology, key: str, retry_s: float, late: Late | None = None
    ) -> None:
        self.has_loaded = False
        self._topology = topology
        self._key = key
        self._late = late
        self._retry_window = RetryWindow(retry_s)
        self._redirects = 0
        self._asking: Node | None = None

    @property
    def node(self) -> Node:
        return self._topology.node_of(self._key)

    async def prepare(self, problem: _Problem) -> None:
        """Follow a redirect at once, wait for what passes, raise what does not."""
        redirect = redirect_of(problem)
        if redirect is not None and self._redirects < _MOST_REDIRECTS:
            self._redirects += 1
            node = self._topology.redirected(self.node, redirect)
            self._asking = None if redirect.is_lasting else node
            return
        is_passing = _is_passing(problem)
        if not is_passing or not await self._retry_window.wait():
            if is_passing:
                self._topology.schedule_refresh()
            if isinstance(problem, FlowFabricError):
                raise problem
            raise fault_of(problem, self.node.name)
        await refreshed(self._topology)

    async def send(self, request: bytes) -> Any:
        node, self._asking = self._asking, None
        if node is not None:
            return await node.send_asking(request)
        return await self.node.send(request, self._late)


def ignore(_: Any) -> None:
    """What a late answer to a question of the moment is good for."""


async def refreshed(topology: Topology) -> None:
    try:
        await topology.refresh()
    except TransportError as fault:
        # The old map is as good as any.
        _log.info("%s", fault)


async def _log_view(topology: Topology, node: Node) -> None:
    """Which servers a replica takes for primaries, for whoever has to find out why it was asked."""
    if not topology.is_cluster:
        _log.warning("%s is a replica, which takes no writes", node)
        return
    try:
        view = await node.command("CLUSTER", "NODES")
    except FlowFabricError as fault:
        _log.warning("%s is a replica, and does not tell its view of the cluster: %s", node, fault)
        return
    _log.warning("%s is a replica; its view of the cluster: %s", node, view.decode())


def _is_passing(problem: _Problem) -> bool:
    if isinstance(problem, FlowFabricError):
        return problem.retryable
    return is_unsettled(problem) or redirect_of(problem) is not None


def is_enough(found: str, wanted: str) -> bool:
    """Whether a library serves us: our own, or that of a newer release that offers our number."""
    if found == wanted:
        return True
    return bool(found) and _release(found) > _release(wanted)


def _release(version: str) -> tuple[int, ...]:
    numbers = version.partition(" ")[0].split(".")
    return tuple(int(number) for number in numbers if number.isdigit())


def _absent(node: Node, found: str, wanted: str) -> FlowFabricError:
    what = f"its library is {found}" if found else "it has no library of ours"
    return ScriptNotLoaded(
        f"{node.name}: {what}, this process needs {wanted} and may not load it "
        "(skip_library_load); load it with `flowfabric migrate`"
    )


def _load_fault(problem: _Problem, node: Node) -> FlowFabricError:
    fault = problem if isinstance(problem, FlowFabricError) else fault_of(problem, node.name)
    return (
        type(fault)(f"library load: {problem}") if fault.retryable else Bug(f"library: {problem}")
    )
