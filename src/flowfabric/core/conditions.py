"""Resume conditions: what must be received for a suspension to end, and what one more signal does
to that."""

from collections.abc import Iterator
from hashlib import sha256
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
    """A node with its path and depth; the root has depth 1."""

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


def required_names(condition: Condition, waitpoint_key: str = "") -> tuple[str, ...]:
    """The signal names that may be sent, to one waitpoint if it is named; none stands for any."""
    match condition.condition_type:
        case "operator_only":
            return (OPERATOR_ONLY,)
        case "timeout_only":
            return (TIMEOUT_ONLY,)
        case "composite" if condition.tree is not None:
            return tree_names(condition, waitpoint_key)
        case _:
            return condition.required_signal_names


def tree_names(condition: Condition, waitpoint_key: str = "") -> tuple[str, ...]:
    """The signal names that the tree of a condition waits for, each once."""
    if condition.tree is None:
        return ()
    found = leaves(condition.tree)
    matchers = (one.matcher for one in found if waitpoint_key in ("", *keys_of(one)))
    return tuple(dict.fromkeys(one.name for one in matchers if isinstance(one, ByName)))


def with_paths(node: Node, path: str = "") -> Node:
    """The tree with every node's path written into it."""
    if isinstance(node, AllOf | AnyOf):
        members = tuple(
            with_paths(member, _member_path(path, i)) for i, member in enumerate(node.members)
        )
        return type(node)(members, path)
    return msgspec.structs.replace(node, path=path)


SATISFIED: Final = "resume_condition_satisfied"
APPENDED: Final = "appended_to_waitpoint"
_IGNORED: Final = "no_op"

# Longer tokens are kept as digests, which bounds what a counted source can make a suspension hold.
_LONGEST_TOKEN: Final = 96


class Satisfier(NamedTuple):
    """A signal that filled a matcher or added a token, and the waitpoint it came to."""

    waitpoint_id: str
    signal_id: str


class Evaluation(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How far a condition is met: who filled each matcher, or the distinct tokens per node; and
    the signals that counted, in order of acceptance."""

    filled: tuple[str, ...] = ()
    tokens: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    satisfiers: tuple[Satisfier, ...] = ()


class SignalFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a condition looks at in a signal."""

    signal_id: str
    name: str
    waitpoint_id: str
    waitpoint_key: str
    source_type: str
    source_identity: str


class Judgement(msgspec.Struct, frozen=True):
    evaluation: Evaluation
    effect: str
    matched: bool

    @property
    def satisfied(self) -> bool:
        return self.effect == SATISFIED


def evaluate(condition: Condition, so_far: Evaluation, signal: SignalFacts) -> Judgement:
    """What one more signal does to a condition."""
    match condition.condition_type:
        case "signal_set":
            return _evaluate_set(condition, so_far, signal)
        case "composite" if condition.tree is not None:
            return _evaluate_tree(condition.tree, so_far, signal)
        case _:
            return Judgement(so_far, _IGNORED, False)


def _evaluate_set(condition: Condition, so_far: Evaluation, signal: SignalFacts) -> Judgement:
    names = matchers_of(condition)
    filled = list(so_far.filled or ("",) * len(names))
    for position, name in enumerate(names):
        if not filled[position] and name in ("", signal.name):
            filled[position] = signal.signal_id
            break
    else:
        return Judgement(so_far, _IGNORED, False)
    done = sum(1 for one in filled if one)
    wanted = len(names) if match_mode(condition) == "all" else condition.minimum_signal_count
    news = Evaluation(filled=tuple(filled), satisfiers=_with(so_far, signal))
    return Judgement(news, SATISFIED if done >= wanted else APPENDED, True)


def _evaluate_tree(tree: Node, so_far: Evaluation, signal: SignalFacts) -> Judgement:
    listening = [leaf for leaf in leaves(tree) if signal.waitpoint_key in keys_of(leaf)]
    if not listening:
        return Judgement(so_far, "signal_ignored_not_in_condition", False)
    accepting = [leaf for leaf in listening if _accepts(leaf.matcher, signal.name)]
    if not accepting:
        return Judgement(so_far, "signal_ignored_matcher_failed", False)
    tokens = dict(so_far.tokens)
    is_new = False
    for leaf in accepting:
        held, token = tokens.get(leaf.path, ()), _token(leaf, signal)
        room = leaf.n if isinstance(leaf, Count) else 1
        if token not in held and len(held) < room:
            tokens[leaf.path] = (*held, token)
            is_new = True
    if not is_new:
        return Judgement(so_far, "appended_to_waitpoint_duplicate", True)
    news = Evaluation(tokens=tokens, satisfiers=_with(so_far, signal))
    return Judgement(news, SATISFIED if _is_met(tree, tokens) else APPENDED, True)


def _with(so_far: Evaluation, signal: SignalFacts) -> tuple[Satisfier, ...]:
    return (*so_far.satisfiers, Satisfier(signal.waitpoint_id, signal.signal_id))


def _accepts(matcher: Matcher | None, name: str) -> bool:
    return not isinstance(matcher, ByName) or matcher.name == name


def _token(leaf: Single | Count, signal: SignalFacts) -> str:
    """What a signal adds at one node; distinct signals count there as often as these differ."""
    if isinstance(leaf, Single):
        return "met"
    match leaf.count_kind:
        case "DistinctWaitpoints":
            return signal.waitpoint_id
        case "DistinctSignals":
            return signal.signal_id
        case "DistinctSources":
            # Both parts are free text: only an encoding keeps ("a", "b c") from ("a b", "c").
            pair = msgspec.json.encode([signal.source_type, signal.source_identity])
            return pair.decode() if len(pair) <= _LONGEST_TOKEN else sha256(pair).hexdigest()


def _is_met(node: Node, tokens: dict[str, tuple[str, ...]]) -> bool:
    match node:
        case Single():
            return bool(tokens.get(node.path))
        case Count():
            return len(tokens.get(node.path, ())) >= node.n
        case AllOf():
            return all(_is_met(member, tokens) for member in node.members)
        case AnyOf():
            return any(_is_met(member, tokens) for member in node.members)
        case _:
            return False
