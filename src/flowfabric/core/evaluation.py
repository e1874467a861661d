"""What one more signal does to a condition: how far it is met, and with which effect."""

from hashlib import sha256
from typing import Final, NamedTuple

import msgspec

from flowfabric.core.conditions import (
    AllOf,
    AnyOf,
    ByName,
    Condition,
    Count,
    Matcher,
    Node,
    Single,
    keys_of,
    leaves,
    match_mode,
    matchers_of,
)

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
