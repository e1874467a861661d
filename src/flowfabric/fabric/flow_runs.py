"""A flow that was submitted, and everything one may ask of it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from flowfabric.core.graph import FINAL_PUBLIC
from flowfabric.core.states import PUBLIC_STATES
from flowfabric.errors import ConfigError, ResultTimeout
from flowfabric.fabric.drawing import Style, drawn
from flowfabric.fabric.nodes import FlowMember, Node
from flowfabric.fabric.runs import Run
from flowfabric.fabric.submitter import Submitter
from flowfabric.operations.flow_queries import FlowSnapshot
from flowfabric.operations.flows import FlowCancelled, ReplayedMember
from flowfabric.worker.durations import Duration, milliseconds

R = TypeVar("R")

_PAGE: Final = 1_000
_LONGEST_CANCEL_S: Final = 300.0
# Public states in which a member is not ended by a cancel of each policy.
_SPARED: Final = {
    "cancel_all": FINAL_PUBLIC,
    "cancel_pending": FINAL_PUBLIC | {"active"},
    "flow_only": frozenset(PUBLIC_STATES),
}


class FlowRun:
    def __init__(
        self,
        flow_id: str,
        port: Callable[[], Awaitable[Submitter]],
        nodes: Mapping[str, Node[Any]],
        executions: Mapping[str, str],
    ) -> None:
        self.id = flow_id
        self._port = port
        self._nodes = nodes
        self._executions = executions
        self._names = {execution_id: name for name, execution_id in executions.items()}

    def __repr__(self) -> str:
        return f"FlowRun({self.id!r})"

    def run(self, node: Node[R]) -> Run[R]:
        """The run of one node."""
        if self._nodes.get(node.name) is not node:
            raise ConfigError(f"flow: {node.name} is no node of this flow")
        return Run(self._executions[node.name], self._port, node.call.result_type)

    async def result(self, node: Node[R], timeout: Duration | None = None) -> R:
        """The decoded result of a node as soon as it is there; how else it ended is raised."""
        return await self.run(node).result(timeout)

    async def wait(self, timeout: Duration | None = None) -> str:
        """The flow's state once every member has ended, those too that handlers started."""
        try:
            async with asyncio.timeout(_seconds(timeout)):
                await self._all_ended()
                return await self.state()
        except TimeoutError:
            raise ResultTimeout(f"{self.id} has not ended after {timeout}; it goes on") from None

    async def state(self) -> str:
        return (await self.info()).public_flow_state

    async def info(self) -> FlowSnapshot:
        return await (await self._port()).describe_flow(self.id)

    async def members(self) -> list[FlowMember]:
        """Every member with its state, by creation."""
        port, cursor = await self._port(), ""
        members: list[FlowMember] = []
        while True:
            page = await port.list_members(self.id, cursor, _PAGE)
            members += [
                FlowMember(
                    one.execution_id, one.public_state, self._names.get(one.execution_id, "")
                )
                for one in page.items
            ]
            cursor = page.next_cursor
            if not cursor:
                return members

    async def cancel(
        self,
        policy: str = "cancel_all",
        wait: Duration | bool | None = None,
        *,
        reason: str = "",
    ) -> FlowCancelled:
        """Cancel all members, those that nobody runs (`cancel_pending`), or only the flow
        (`flow_only`). With `wait`, a time or True, it returns when those have ended."""
        answer = await (await self._port()).cancel_flow(self.id, policy, reason)
        if wait is None or wait is False:
            return answer
        limit = _LONGEST_CANCEL_S if wait is True else _seconds(wait)
        try:
            async with asyncio.timeout(min(limit or 0.0, _LONGEST_CANCEL_S)):
                await self._all_ended(_SPARED[answer.cancellation_policy])
        except TimeoutError:
            raise ResultTimeout(f"cancel_flow: members of {self.id} are still live") from None
        return answer

    async def replay(
        self, from_: Node[Any] | Sequence[Node[Any]] | None = None, reason: str = ""
    ) -> list[ReplayedMember]:
        """Run the members again that ended without success, or the given ones, and what was
        skipped behind them."""
        chosen = [from_] if isinstance(from_, Node) else from_
        ids = None if chosen is None else [self.run(one).id for one in chosen]
        return (await (await self._port()).replay_flow(self.id, ids, reason)).items

    def draw(self, style: Style = "text") -> str:
        """The graph as it was submitted."""
        return drawn(self._nodes.values(), style)

    async def _all_ended(self, spared: frozenset[str] = FINAL_PUBLIC) -> None:
        while live := [one for one in await self.members() if one.state not in spared]:
            await self._ended(one.execution_id for one in live)

    async def _ended(self, execution_ids: Iterable[str]) -> None:
        port = await self._port()
        await asyncio.gather(*(port.wait_ended(one) for one in execution_ids))


def _seconds(limit: Duration | None) -> float | None:
    return None if limit is None else milliseconds(limit, "timeout") / 1000
