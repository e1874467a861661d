"""Nodes of a flow that is being built, how several stand for one input, and how they are drawn."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from flowfabric.core.edge_policies import EdgePolicy
from flowfabric.core.graph import OnSatisfied
from flowfabric.errors import ConfigError
from flowfabric.worker.children import BoundCall
from flowfabric.worker.signatures import UpstreamValue

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

_ON_SATISFIED: Final = ("cancel_remaining", "let_run")


class Node(Generic[R_co]):
    """A task in a flow. Given as an argument of another it stands for its result."""

    def __init__(self, name: str, call: BoundCall[R_co], inputs: "Inputs") -> None:
        self.name = name
        self.call = call
        self.inputs = inputs
        # The first node of the map that it belongs to.
        self.group = ""

    def __repr__(self) -> str:
        return f"Node({self.name!r})"

    def after(self, *nodes: "Node[Any] | Choice[Any]") -> "Node[R_co]":
        """Begin only when these have succeeded; their results are not passed on."""
        for one in nodes:
            self.inputs.order(one)
        return self


class Choice(Generic[R_co]):
    """Several nodes of which some are enough."""

    def __init__(self, nodes: tuple[Node[R_co], ...], policy: EdgePolicy) -> None:
        self.nodes = nodes
        self.policy = policy


def choice(nodes: tuple[Node[R], ...], k: int | None, on_satisfied: OnSatisfied) -> Choice[R]:
    """Any one of the nodes, or any `k`."""
    if not nodes:
        raise ConfigError("flow: a choice needs at least one node")
    if on_satisfied not in _ON_SATISFIED:
        raise ConfigError(f"flow: on_satisfied: expected one of {', '.join(_ON_SATISFIED)}")
    if k is None:
        return Choice(nodes, EdgePolicy("any_of", 0, on_satisfied))
    if type(k) is not int or not 1 <= k <= len(nodes):
        raise ConfigError(f"flow: quorum of {k!r}: expected 1 to {len(nodes)}")
    return Choice(nodes, EdgePolicy("quorum", k, on_satisfied))


class Inputs:
    """What one node waits for: an edge from each source, perhaps with a name, and how the edges
    combine. Two nodes are joined by one edge, so a source has one name however often it is used."""

    def __init__(self, check: Callable[[Node[Any]], None]) -> None:
        self._check = check
        self.edges: dict[str, str] = {}
        self.policy: EdgePolicy | None = None
        self._has_plain = False

    def order(self, source: Node[Any] | Choice[Any]) -> None:
        self._join(source, "")

    def name(self, source: Node[Any] | Choice[Any], name: str) -> None:
        """Pass the result on under a name that the caller chose."""
        if not name:
            raise ConfigError("flow: data: a name is empty")
        self._join(source, name)

    def refer(self, source: Node[Any] | Choice[Any]) -> UpstreamValue:
        """Pass the result on in the place of an argument."""
        if isinstance(source, Choice) and source.policy.kind == "quorum":
            raise ConfigError(
                "flow: a quorum has several results: order by `after`, read `ctx.upstreams()`"
            )
        first = source.nodes[0] if isinstance(source, Choice) else source
        name = self.edges.get(first.name) or f"arg.{len(self.edges)}"
        self._join(source, name)
        return UpstreamValue(name)

    def values(self, value: object) -> object:
        """The value with a reference for every node in it."""
        if isinstance(value, Node | Choice):
            return self.refer(value)
        if isinstance(value, list | tuple) and _holds_nodes(value):
            return [self.values(one) for one in value]
        if isinstance(value, Mapping) and _holds_nodes(value):
            return {name: self.values(one) for name, one in value.items()}
        return value

    def _join(self, source: Node[Any] | Choice[Any], name: str) -> None:
        nodes = source.nodes if isinstance(source, Choice) else (source,)
        self._combine(source)
        for one in nodes:
            self._check(one)
            known = self.edges.get(one.name, "")
            if known and name and known != name:
                raise ConfigError(f"flow: {one.name} is passed on as {known!r} already")
            self.edges[one.name] = known or name

    def _combine(self, source: Node[Any] | Choice[Any]) -> None:
        """All edges of a node combine in one way."""
        if not isinstance(source, Choice):
            if self.policy is not None:
                raise ConfigError("flow: a node waits for nodes or for one choice, not for both")
            self._has_plain = True
            return
        known = set(self.edges) <= {one.name for one in source.nodes}
        if self._has_plain or (self.policy or source.policy) != source.policy or not known:
            raise ConfigError("flow: a node waits for nodes or for one choice, not for both")
        self.policy = source.policy


def _holds_nodes(value: object) -> bool:
    if isinstance(value, Node | Choice):
        return True
    if isinstance(value, Mapping):
        return any(map(_holds_nodes, value.values()))
    return isinstance(value, list | tuple) and any(map(_holds_nodes, value))


class FlowMember(msgspec.Struct, frozen=True):
    """A member of a submitted flow; `node` is empty for one that a handler started."""

    execution_id: str
    state: str
    node: str = ""


# ---- drawing

Style = Literal["text", "mermaid"]


# A map of more nodes than these is drawn as one.
_MOST_DRAWN: Final = 3


class _Drawn(msgspec.Struct):
    """What is drawn as one: a node, or all nodes of a map. `sources` has for each of what is before
    it the name under which its result is passed on."""

    label: str
    combined: str
    sources: dict[str, str]


def drawn(nodes: Iterable[Node[Any]], style: Style) -> str:
    together = _together(list(nodes))
    match style:
        case "text":
            return "\n".join(map(_line, together))
        case "mermaid":
            return _mermaid(together)
        case _:
            raise ConfigError(f"draw: expected text or mermaid, got {style!r}")


def _together(nodes: list[Node[Any]]) -> list[_Drawn]:
    sizes = Counter(node.group for node in nodes if node.group)
    last = {node.group: node.name for node in nodes}
    labels: dict[str, str] = {}
    for node in nodes:
        size = sizes[node.group]
        is_one = size <= _MOST_DRAWN
        labels[node.name] = (
            node.name if is_one else f"{node.group} … {last[node.group]} ({size} nodes)"
        )
    found: dict[str, _Drawn] = {}
    for node in nodes:
        label = labels[node.name]
        one = found.setdefault(label, _Drawn(label, _combined(node), {}))
        for source, name in node.inputs.edges.items():
            is_single = label == node.name and labels[source] == source
            # A map passes its results on under as many names as it has nodes.
            one.sources[labels[source]] = name if is_single else ""
    return list(found.values())


def _line(one: _Drawn) -> str:
    sources = ", ".join(
        f"{source} ({name})" if name else source for source, name in one.sources.items()
    )
    return f"{one.label} <- {one.combined}{sources}" if sources else one.label


def _combined(node: Node[Any]) -> str:
    policy = node.inputs.policy
    if policy is None:
        return ""
    return "any of " if policy.kind == "any_of" else f"{policy.k} of "


def _mermaid(together: list[_Drawn]) -> str:
    # Names may hold what the diagram's language has a meaning for; numbers do not.
    numbers = {one.label: f"n{place}" for place, one in enumerate(together)}
    lines = ["flowchart TD"]
    lines += [f'    {numbers[one.label]}["{_escaped(one.label)}"]' for one in together]
    for one in together:
        label = one.combined.strip()
        for source, name in one.sources.items():
            label_text = ", ".join(_escaped(text) for text in (label, name) if text)
            arrow = f'-->|"{label_text}"|' if label_text else "-->"
            lines.append(f"    {numbers[source]} {arrow} {numbers[one.label]}")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return text.replace("#", "#35;").replace('"', "#quot;")
