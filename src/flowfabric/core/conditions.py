"""Resume conditions: the predicate over received signals that ends a suspension."""

from collections.abc import Iterator
from typing import Final, Literal, Union

import msgspec

MAX_DEPTH: Final = 4
MAX_COUNT: Final = 1_000
RESERVED_PREFIX: Final = "__"
OPERATOR_ONLY: Final = "__operator_only__"
TIMEOUT_ONLY: Final = "__timeout_only__"

CountKind = Literal["DistinctWaitpoints", "DistinctSignals", "DistinctSources"]
MatchMode = Literal["any", "all", "composite"]


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
    """Readable inside a tree only so that its refusal can name the place."""

    path: str = ""


class TimeoutOnly(msgspec.Struct, frozen=True, tag_field="kind"):
    path: str = ""


Node = Union[Single, AllOf, AnyOf, Count, OperatorOnly, TimeoutOnly]  # noqa: UP007


class Condition(
    msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, forbid_unknown_fields=True
):
    """A condition as callers send it and suspensions keep it."""

    condition_type: Literal["signal_set", "operator_only", "timeout_only", "composite"]
    required_signal_names: tuple[str, ...] = ()
    signal_match_mode: str = ""
    minimum_signal_count: int = 1
    timeout_behavior: str = ""
    allow_operator_override: bool = True
    v: int = 1
    composite: bool = False
    tree: Node | None = None
    # A single condition names the waitpoint it is about; the other plain forms use the primary.
    waitpoint_key: str = ""


class Evaluation(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How far a condition is met: who filled each matcher, or the distinct tokens per node."""

    filled: tuple[str, ...] = ()
    tokens: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    satisfiers: tuple[str, ...] = ()


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
        return self.effect == "resume_condition_satisfied"


SATISFIED: Final = "resume_condition_satisfied"


def evaluate(condition: Condition, so_far: Evaluation, signal: SignalFacts) -> Judgement:
    """What one more signal does to a condition."""
    match condition.condition_type:
        case "signal_set":
            return _evaluate_set(condition, so_far, signal)
        case "composite" if condition.tree is not None:
            return _evaluate_tree(condition.tree, so_far, signal)
        case _:
            return Judgement(so_far, "no_op", False)


def fresh_evaluation(condition: Condition) -> Evaluation:
    if condition.condition_type != "signal_set":
        return Evaluation()
    return Evaluation(filled=("",) * len(matchers_of(condition)))


def matchers_of(condition: Condition) -> tuple[str, ...]:
    """The names a signal set waits for; no name at all is one wildcard."""
    return condition.required_signal_names or ("",)


def match_mode(condition: Condition) -> str:
    if condition.signal_match_mode:
        return condition.signal_match_mode
    return "all" if len(condition.required_signal_names) > 1 else "any"


def _evaluate_set(condition: Condition, so_far: Evaluation, signal: SignalFacts) -> Judgement:
    names = matchers_of(condition)
    filled = list(so_far.filled)
    for position, name in enumerate(names):
        if not filled[position] and name in ("", signal.name):
            filled[position] = signal.signal_id
            break
    else:
        return Judgement(so_far, "no_op", False)
    done = sum(1 for one in filled if one)
    wanted = len(names) if match_mode(condition) == "all" else condition.minimum_signal_count
    evaluation = Evaluation(filled=tuple(filled), satisfiers=(*so_far.satisfiers, signal.signal_id))
    return Judgement(evaluation, SATISFIED if done >= wanted else "appended_to_waitpoint", True)


def _evaluate_tree(tree: Node, so_far: Evaluation, signal: SignalFacts) -> Judgement:
    listening = [leaf for leaf in leaves(tree) if _listens(leaf, signal.waitpoint_key)]
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
    evaluation = Evaluation(tokens=tokens, satisfiers=(*so_far.satisfiers, signal.signal_id))
    met = _is_met(tree, tokens)
    return Judgement(evaluation, SATISFIED if met else "appended_to_waitpoint", True)


def leaves(node: Node) -> Iterator[Single | Count]:
    match node:
        case Single() | Count():
            yield node
        case AllOf() | AnyOf():
            for member in node.members:
                yield from leaves(member)


def _listens(leaf: Single | Count, key: str) -> bool:
    return key == leaf.waitpoint_key if isinstance(leaf, Single) else key in leaf.waitpoints


def _accepts(matcher: Matcher | None, name: str) -> bool:
    return not isinstance(matcher, ByName) or matcher.name == name


def _token(leaf: Single | Count, signal: SignalFacts) -> str:
    if isinstance(leaf, Single):
        return "met"
    match leaf.count_kind:
        case "DistinctWaitpoints":
            return signal.waitpoint_id
        case "DistinctSignals":
            return signal.signal_id
        case "DistinctSources":
            # Both parts are free text: only an encoding keeps ("a", "b c") from ("a b", "c").
            return msgspec.json.encode([signal.source_type, signal.source_identity]).decode()


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


def with_paths(node: Node, path: str = "") -> Node:
    """The tree with every node's place written into it."""
    if isinstance(node, AllOf | AnyOf):
        below = f"{path}." if path else ""
        members = tuple(
            with_paths(member, f"{below}members[{i}]") for i, member in enumerate(node.members)
        )
        return type(node)(members, path)
    return msgspec.structs.replace(node, path=path)
