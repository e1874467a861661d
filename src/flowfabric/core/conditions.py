"""Resume conditions: what must be received for a suspension to end, in all its forms."""

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, Union

import msgspec

OPERATOR_ONLY: Final = "__operator_only__"
TIMEOUT_ONLY: Final = "__timeout_only__"

ConditionType = Literal["signal_set", "operator_only", "timeout_only", "composite"]
CountKind = Literal["DistinctWaitpoints", "DistinctSignals", "DistinctSources"]


class ByName(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    name: str


class Wildcard(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    pass


Matcher = ByName | Wildcard


class Single(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    """One matching signal on one waitpoint."""

    waitpoint_key: str
    matcher: Matcher
    path: str = ""


class AllOf(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    members: tuple["Node", ...]
    path: str = ""


class AnyOf(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    members: tuple["Node", ...]
    path: str = ""


class Count(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    """At least `n` distinct satisfiers on the listed waitpoints."""

    n: int
    count_kind: CountKind
    waitpoints: tuple[str, ...]
    matcher: Matcher | None = None
    path: str = ""


class OperatorOnly(msgspec.Struct, frozen=True, tag_field="kind"):
    """Readable inside a tree only so that its refusal can name its path."""

    path: str = ""


class TimeoutOnly(msgspec.Struct, frozen=True, tag_field="kind"):
    """Readable inside a tree for the same reason."""

    path: str = ""


Node = Union[Single, AllOf, AnyOf, Count, OperatorOnly, TimeoutOnly]  # noqa: UP007


class Condition(
    msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, forbid_unknown_fields=True
):
    """A condition as callers send it and suspensions keep it."""

    condition_type: ConditionType
    required_signal_names: tuple[str, ...] = ()
    signal_match_mode: str = ""
    minimum_signal_count: int = 1
    timeout_behavior: str = ""
    allow_operator_override: bool = True
    v: int = 1
    composite: bool = False
    tree: Node | None = None
    # A single condition may name its waitpoint; every other plain form is about the primary.
    waitpoint_key: str = ""


def single(waitpoint_key: str = "", matcher: Matcher | None = None) -> Condition:
    """One matching signal on that waitpoint; on the primary when none is named."""
    names = () if matcher is None or isinstance(matcher, Wildcard) else (matcher.name,)
    return Condition(
        condition_type="signal_set", required_signal_names=names, waitpoint_key=waitpoint_key
    )


def signal_set(*names: str, mode: str = "", minimum: int = 1) -> Condition:
    """Several names on the primary waitpoint; all of them unless `mode` says any."""
    return Condition(
        condition_type="signal_set",
        required_signal_names=names,
        signal_match_mode=mode,
        minimum_signal_count=minimum,
    )


def operator_only() -> Condition:
    """Met by no signal: an operator, a timeout or a cancel ends it."""
    return Condition(condition_type="operator_only")


def timeout_only() -> Condition:
    """Met by no signal, and so in need of a timeout."""
    return Condition(condition_type="timeout_only")


def composite(tree: Node) -> Condition:
    return Condition(condition_type="composite", tree=tree)


def matchers_of(condition: Condition) -> tuple[str, ...]:
    """The names a signal set waits for; no name at all is one wildcard."""
    return condition.required_signal_names or ("",)


def match_mode(condition: Condition) -> str:
    if condition.signal_match_mode:
        return condition.signal_match_mode
    return "all" if len(condition.required_signal_names) > 1 else "any"


def completed(condition: Condition, timeout_behavior: str) -> Condition:
    """The condition with every member set that a caller may leave out."""
    tree = condition.tree
    mode = {"signal_set": match_mode(condition), "composite": "composite"}
    return msgspec.structs.replace(
        condition,
        signal_match_mode=mode.get(condition.condition_type, "all"),
        timeout_behavior=timeout_behavior,
        composite=condition.condition_type == "composite",
        tree=with_paths(tree) if tree is not None else None,
    )


class TreeNode(NamedTuple):
    """A node, where it stands, and on which level; the root is on the first."""

    path: str
    depth: int
    node: Node


def walk(tree: Node) -> Iterator[TreeNode]:
    """Every node, parents before their members; without recursion, for trees not yet checked."""
    left = [iter((TreeNode("", 1, tree),))]
    while left:
        at = next(left[-1], None)
        if at is None:
            left.pop()
            continue
        yield at
        if isinstance(at.node, AllOf | AnyOf):
            left.append(_members_of(at, at.node.members))


def _members_of(parent: TreeNode, members: tuple[Node, ...]) -> Iterator[TreeNode]:
    """Made one by one: whoever looks for the first leaf of a wide tree stops there."""
    for i, member in enumerate(members):
        yield TreeNode(_member_path(parent.path, i), parent.depth + 1, member)


def _member_path(path: str, position: int) -> str:
    return f"{path}.members[{position}]" if path else f"members[{position}]"


def leaves(tree: Node) -> Iterator[Single | Count]:
    """The nodes that look at signals."""
    for at in walk(tree):
        if isinstance(at.node, Single | Count):
            yield at.node


def keys_of(leaf: Single | Count) -> tuple[str, ...]:
    return (leaf.waitpoint_key,) if isinstance(leaf, Single) else leaf.waitpoints


def first_key(condition: Condition) -> str:
    """The waitpoint key the condition names first, "" when it names none."""
    if condition.tree is None:
        return condition.waitpoint_key
    return next((key for leaf in leaves(condition.tree) for key in keys_of(leaf)), "")


def required_names(condition: Condition) -> tuple[str, ...]:
    """The signal names a person may be told to send; none stands for any."""
    match condition.condition_type:
        case "operator_only":
            return (OPERATOR_ONLY,)
        case "timeout_only":
            return (TIMEOUT_ONLY,)
        case "composite" if condition.tree is not None:
            matchers = (leaf.matcher for leaf in leaves(condition.tree))
            names = (one.name for one in matchers if isinstance(one, ByName))
            return tuple(dict.fromkeys(names))
        case _:
            return condition.required_signal_names


def with_paths(node: Node, path: str = "") -> Node:
    """The tree with every node's path written into it."""
    if isinstance(node, AllOf | AnyOf):
        members = tuple(
            with_paths(member, _member_path(path, i)) for i, member in enumerate(node.members)
        )
        return type(node)(members, path)
    return msgspec.structs.replace(node, path=path)
