"""A flow as people look at it."""

from collections.abc import Iterable
from typing import Any, Literal

from flowfabric.errors import ConfigError
from flowfabric.fabric.nodes import Node

Style = Literal["text", "mermaid"]


def drawn(nodes: Iterable[Node[Any]], style: Style) -> str:
    match style:
        case "text":
            return "\n".join(_line(node) for node in nodes)
        case "mermaid":
            return _mermaid(list(nodes))
        case _:
            raise ConfigError(f"draw: expected text or mermaid, got {style!r}")


def _line(node: Node[Any]) -> str:
    sources = ", ".join(
        f"{source} ({name})" if name else source for source, name in node.inputs.edges.items()
    )
    return f"{node.name} <- {_combined(node)}{sources}" if sources else node.name


def _combined(node: Node[Any]) -> str:
    policy = node.inputs.policy
    if policy is None:
        return ""
    return "any of " if policy.kind == "any_of" else f"{policy.k} of "


def _mermaid(nodes: list[Node[Any]]) -> str:
    # Names may hold what the diagram's language has a meaning for; numbers do not.
    numbers = {node.name: f"n{place}" for place, node in enumerate(nodes)}
    lines = ["flowchart TD"]
    lines += [f'    {numbers[node.name]}["{_escaped(node.name)}"]' for node in nodes]
    for node in nodes:
        label = _combined(node).strip()
        for source, name in node.inputs.edges.items():
            label_text = ", ".join(_escaped(one) for one in (label, name) if one)
            arrow = f'-->|"{label_text}"|' if label_text else "-->"
            lines.append(f"    {numbers[source]} {arrow} {numbers[node.name]}")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return text.replace("#", "#35;").replace('"', "#quot;")
