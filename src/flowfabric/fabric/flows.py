"""Flows: a graph of tasks that is built here, submitted in one call, and looked after."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, Unpack, overload

from flowfabric.core.graph import FINAL_PUBLIC, INPUT, UNHAPPY, OnSatisfied
from flowfabric.core.states import PUBLIC_STATES
from flowfabric.engine.flows.graphs import check_graph
from flowfabric.errors import ConfigError, ResultTimeout
from flowfabric.fabric.node_types import (
    AnyNode,
    Input,
    NodeOptions,
    Several,
    TakesOne,
    TakesTwo,
    Unchecked,
)
from flowfabric.fabric.nodes import Choice, FlowMember, Inputs, Node, Style, choice, drawn
from flowfabric.fabric.options import Options
from flowfabric.fabric.runs import Run
from flowfabric.fabric.submitter import MOST_PER_PAGE, Submitter, every
from flowfabric.operations.flow_queries import FlowSnapshot
from flowfabric.operations.flows import (
    FlowCancelled,
    GraphEdge,
    GraphGroup,
    GraphNode,
    GraphSubmission,
    ReplayedMember,
)
from flowfabric.worker.children import BoundCall, Callee
from flowfabric.worker.durations import Duration, optional_seconds

P = ParamSpec("P")
R = TypeVar("R")
X = TypeVar("X")
Y = TypeVar("Y")

_LONGEST_CANCEL_S: Final = 300.0
# Public states in which a member is not ended by a cancel of each policy.
_SPARED: Final = {
    "cancel_all": FINAL_PUBLIC,
    "cancel_pending": FINAL_PUBLIC | {"active"},
    "flow_only": frozenset(PUBLIC_STATES),
}


class Flow:
    """Nothing is sent before `submit`, which checks the graph first."""

    def __init__(
        self,
        port: Callable[[], Awaitable[Submitter]],
        kind: str,
        *,
        namespace: str,
        idempotency_key: str,
        tags: Mapping[str, str],
    ) -> None:
        self.kind = kind
        self._port = port
        self._namespace = namespace
        self._key = idempotency_key
        self._tags = tags
        self._nodes: dict[str, Node[Any]] = {}
        self._used: Counter[str] = Counter()

    # ---- building

    @overload
    def add(self, task: Callee[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Node[R]: ...

    @overload
    def add(
        self,
        task: TakesOne[X, R],
        one: Input[X],
        /,
        *,
        after: Sequence[AnyNode] = (),
        data: Mapping[str, AnyNode] | None = None,
        policy: Options | None = None,
    ) -> Node[R]: ...

    @overload
    def add(
        self,
        task: TakesOne[list[X], R],
        one: Several[X],
        /,
        *,
        after: Sequence[AnyNode] = (),
        data: Mapping[str, AnyNode] | None = None,
        policy: Options | None = None,
    ) -> Node[R]: ...

    @overload
    def add(
        self,
        task: TakesTwo[X, Y, R],
        one: Input[X],
        two: Input[Y],
        /,
        *,
        after: Sequence[AnyNode] = (),
        data: Mapping[str, AnyNode] | None = None,
        policy: Options | None = None,
    ) -> Node[R]: ...

    @overload
    def add(
        self,
        task: TakesTwo[X, list[Y], R],
        one: Input[X],
        two: Several[Y],
        /,
        *,
        after: Sequence[AnyNode] = (),
        data: Mapping[str, AnyNode] | None = None,
        policy: Options | None = None,
    ) -> Node[R]: ...

    @overload
    def add(
        self,
        task: TakesTwo[list[X], Y, R],
        one: Several[X],
        two: Input[Y],
        /,
        *,
        after: Sequence[AnyNode] = (),
        data: Mapping[str, AnyNode] | None = None,
        policy: Options | None = None,
    ) -> Node[R]: ...

    @overload
    def add(
        self,
        task: Callee[Concatenate[X, ...], R],
        one: Input[X],
        /,
        *,
        after: Sequence[AnyNode] = (),
        data: Mapping[str, AnyNode] | None = None,
        policy: Options | None = None,
        **named: Unchecked,
    ) -> Node[R]: ...

    @overload
    def add(
        self,
        task: Callee[Concatenate[list[X], ...], R],
        one: Several[X],
        /,
        *,
        after: Sequence[AnyNode] = (),
        data: Mapping[str, AnyNode] | None = None,
        policy: Options | None = None,
        **named: Unchecked,
    ) -> Node[R]: ...

    @overload
    def add(
        self,
        task: Callee[..., R],
        one: object,
        two: object,
        three: object,
        /,
        *more: object,
        after: Sequence[AnyNode] = (),
        data: Mapping[str, AnyNode] | None = None,
        policy: Options | None = None,
        **named: object,
    ) -> Node[R]: ...

    @overload
    def add(
        self,
        task: Callee[..., R],
        /,
        *,
        after: Sequence[AnyNode] = (),
        data: Mapping[str, AnyNode] | None = None,
        policy: Options | None = None,
        **named: Unchecked,
    ) -> Node[R]: ...

    # mypy does not see that the three options are no arguments of the task.
    def add(  # type: ignore[misc]
        self,
        task: Any,
        /,
        *args: Any,
        after: Sequence[AnyNode] = (),
        data: Mapping[str, AnyNode] | None = None,
        policy: Options | None = None,
        **kwargs: Any,
    ) -> Node[Any]:
        """A task with its arguments, any of which may be nodes, or hold nodes. `after` only orders,
        `data` passes results by name, `policy` changes options of the task."""
        inputs, named = Inputs(self._check_known), data or {}
        for name, source in named.items():
            inputs.name(source, name)
        positional = [inputs.values(one) for one in args]
        by_name = {name: inputs.values(one) for name, one in kwargs.items()}
        for source in after:
            inputs.order(source)
        chosen = task.options(**policy) if policy else task
        if INPUT in named and not args and not kwargs:
            call = chosen.template
        else:
            call = chosen.bind(*positional, **by_name)
        return self._keep(call, inputs)

    def map(
        self,
        task: TakesOne[X, R],
        items: Iterable[Input[X]],
        **options: Unpack[NodeOptions],
    ) -> list[Node[R]]:
        """A node per item, which is the task's only argument; the list is an argument as well."""
        nodes = [self.add(task, item, **options) for item in items]
        for node in nodes:
            node.group = nodes[0].name
        return nodes

    def race(self, calls: Iterable[BoundCall[R]]) -> Choice[R]:
        """Start all (`task.bind(…)`); the first success counts and the others are cancelled."""
        return self.any_of([self._keep(call, Inputs(self._check_known)) for call in calls])

    def any_of(
        self, nodes: Iterable[Node[R]], on_satisfied: OnSatisfied = "cancel_remaining"
    ) -> Choice[R]:
        """One success is enough. As an argument it stands for the result that came first."""
        return choice(tuple(nodes), None, on_satisfied)

    def quorum(
        self, k: int, nodes: Iterable[Node[R]], on_satisfied: OnSatisfied = "cancel_remaining"
    ) -> Choice[R]:
        """Any `k` successes are enough."""
        return choice(tuple(nodes), k, on_satisfied)

    def _keep(self, call: BoundCall[R], inputs: Inputs) -> Node[R]:
        asked = call.submission
        if asked.idempotency_key:
            raise ConfigError("flow: a node has no idempotency_key; give the flow one")
        if asked.namespace != self._namespace:
            raise ConfigError(f"flow: {asked.kind}: its namespace is not the flow's")
        self._used[asked.kind] += 1
        count = self._used[asked.kind]
        name = asked.kind if count == 1 else f"{asked.kind}#{count}"
        self._nodes[name] = node = Node(name, call, inputs)
        return node

    def _check_known(self, node: Node[Any]) -> None:
        if self._nodes.get(node.name) is not node:
            raise ConfigError(f"flow: {node.name} is no node of this flow")

    # ---- looking and sending

    def draw(self, style: Style = "text") -> str:
        """The graph for people: indented text, or the source of a Mermaid diagram."""
        return drawn(self._nodes.values(), style)

    async def submit(self) -> "FlowRun":
        """The whole graph in one call. With an idempotency key a repeat finds the same flow."""
        check_graph(self._graph(0))
        port = await self._port()
        delayed = any(node.call.delay_ms for node in self._nodes.values())
        graph = self._graph(await port.now() if delayed else 0)
        made = await port.submit_graph(graph)
        return FlowRun(made.flow_id, self._port, dict(self._nodes), made.executions)

    def _graph(self, now: int) -> GraphSubmission:
        nodes = self._nodes.values()
        return GraphSubmission(
            nodes=tuple(_graph_node(node, now) for node in nodes),
            edges=tuple(
                GraphEdge(source=source, target=node.name, data_passing_ref=name)
                for node in nodes
                for source, name in node.inputs.edges.items()
            ),
            groups=tuple(
                GraphGroup(node.name, node.inputs.policy) for node in nodes if node.inputs.policy
            ),
            flow_kind=self.kind,
            namespace=self._namespace,
            idempotency_key=self._key,
            tags=self._tags or None,
        )


def _graph_node(node: Node[Any], now: int) -> GraphNode:
    asked = node.call.at(now)
    return GraphNode(
        name=node.name,
        lane=asked.lane,
        kind=asked.kind,
        input=asked.input,
        payload_encoding=asked.payload_encoding,
        priority=asked.priority,
        policy=asked.policy,
        tags=asked.tags,
        delay_until=asked.delay_until,
        typed=asked.typed,
    )


# ---- submitted flows


class FlowRun:
    """A flow that was submitted, and everything one may ask of it."""

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

    async def results(self, timeout: Duration | None = None) -> dict[str, Any]:
        """The results of the nodes that completed, by name, once the whole flow has. If it has not
        completed, the end of the first node that is to blame is raised."""
        state = await self.wait(timeout)
        ended = {one.node: one.state for one in await self.members()}
        for name, node in self._nodes.items():
            if state != "completed" and ended[name] in UNHAPPY:
                await self.result(node)
        done = [name for name in self._nodes if ended[name] == "completed"]
        found = await asyncio.gather(*(self.result(self._nodes[name]) for name in done))
        return dict(zip(done, found, strict=True))

    async def wait(self, timeout: Duration | None = None) -> str:
        """The flow's state once every member has ended, those too that handlers started."""
        try:
            async with asyncio.timeout(optional_seconds(timeout)):
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
        port = await self._port()
        return [
            FlowMember(one.execution_id, one.public_state, self._names.get(one.execution_id, ""))
            async for one in every(lambda cursor: port.list_members(self.id, cursor, MOST_PER_PAGE))
        ]

    async def cancel(
        self,
        policy: str = "cancel_all",
        wait: Duration | bool | None = None,
        *,
        reason: str = "",
    ) -> FlowCancelled:
        """Cancel all members, those that do not run (`cancel_pending`), or only the flow
        (`flow_only`). With `wait`, a time or True, it returns when those have ended."""
        answer = await (await self._port()).cancel_flow(self.id, policy, reason)
        if wait is None or wait is False:
            return answer
        limit = _LONGEST_CANCEL_S if wait is True else optional_seconds(wait)
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
