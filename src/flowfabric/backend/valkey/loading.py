"""Calling functions, and having them loaded wherever they are called."""

import asyncio
import logging
from typing import Any, Final

import libvalkey

from flowfabric.backend.valkey.faults import code_of, fault_of, is_missing_function, is_unsettled
from flowfabric.backend.valkey.library import INTERFACE, library
from flowfabric.backend.valkey.node import Node, Word
from flowfabric.backend.valkey.topology import Topology
from flowfabric.errors import Bug, FlowFabricError

_log = logging.getLogger("flowfabric.backend.valkey")
_PAUSES_S: Final = (0.5, 1.0, 2.0, 4.0, 7.0)
_TRIES: Final = 5
_FIRST_PAUSE_S: Final = 0.05


class Functions:
    """`call` runs one function where its key lives. A function that is missing is loaded and the
    call repeated: it cannot have run."""

    def __init__(self, topology: Topology, *, test_mode: bool, force: bool = False) -> None:
        self.topology = topology
        self._text, self.version = library(test_mode=test_mode)
        self._force = force
        self._loads: dict[Node, asyncio.Task[None]] = {}

    async def prepare(self) -> None:
        """Load the library on every primary that has none, or another one."""
        for node in self.topology.primaries():
            if self._force or await self._version_on(node) != self.version:
                await self.load(node)

    async def call(self, function: str, key: str, *args: Word) -> list[Any]:
        request = libvalkey.pack_command(("FCALL", f"ff{INTERFACE}_{function}", 1, key, *args))
        pause = _FIRST_PAUSE_S
        loaded = False
        for left in range(_TRIES - 1, -1, -1):
            node = self.topology.node_of(key)
            answer = await node.send(request)
            if not isinstance(answer, libvalkey.ReplyError):
                return answer  # type: ignore[no-any-return]
            if is_missing_function(answer) and not loaded:
                loaded = True
                _log.warning("%s: function %s is missing, loading the library", node, function)
                await self._load_once(node)
                continue
            if not left or not (is_unsettled(answer) or code_of(answer) == "MOVED"):
                raise fault_of(answer)
            await self.topology.refresh()
            await asyncio.sleep(pause)
            pause *= 2
        raise AssertionError

    async def _load_once(self, node: Node) -> None:
        """Everybody who finds the library missing waits for one load."""
        load = self._loads.get(node)
        if load is None:
            load = self._loads[node] = asyncio.ensure_future(self.load(node))
            load.add_done_callback(lambda _: self._loads.pop(node, None))
        await asyncio.shield(load)

    async def load(self, node: Node) -> None:
        for pause in (*_PAUSES_S, None):
            answer = await node.run("FUNCTION", "LOAD", "REPLACE", self._text)
            if not isinstance(answer, libvalkey.ReplyError):
                return
            if pause is None or not is_unsettled(answer):
                raise _load_fault(answer)
            await asyncio.sleep(pause)
            await self.topology.refresh()

    async def _version_on(self, node: Node) -> str:
        answer = await node.run("FCALL_RO", f"ff{INTERFACE}_version", 0)
        if isinstance(answer, libvalkey.ReplyError):
            if is_missing_function(answer):
                return ""
            raise fault_of(answer)
        return bytes(answer).decode()


def _load_fault(answer: Exception) -> FlowFabricError:
    fault = fault_of(answer)
    return type(fault)(f"library load: {answer}") if fault.retryable else Bug(f"library: {answer}")
