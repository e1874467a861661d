"""The meaning of a condition, told in the plainest way: from all signals at once, from scratch."""

from collections import Counter
from collections.abc import Sequence

from flowfabric.core.conditions import (
    AllOf,
    AnyOf,
    ByName,
    Condition,
    Count,
    Matcher,
    Node,
    SignalFacts,
    Single,
)


def is_met(condition: Condition, history: Sequence[SignalFacts]) -> bool:
    """Whether these signals, received in this order, are what the condition waits for."""
    match condition.condition_type:
        case "signal_set":
            return _is_set_met(condition, [signal.name for signal in history])
        case "composite":
            assert condition.tree is not None
            return met_by(condition.tree, history)
        case _:
            return False


def _is_set_met(condition: Condition, names: Sequence[str]) -> bool:
    wanted = condition.required_signal_names
    if not wanted:
        return bool(names)
    came, due = Counter(names), Counter(wanted)
    filled = sum(min(came[name], due[name]) for name in due)
    needs_all = condition.signal_match_mode == "all" or (
        not condition.signal_match_mode and len(wanted) > 1
    )
    return filled >= (len(wanted) if needs_all else condition.minimum_signal_count)


def met_by(node: Node, history: Sequence[SignalFacts]) -> bool:
    match node:
        case Single():
            return any(hears(node.matcher, one, (node.waitpoint_key,)) for one in history)
        case Count():
            heard = [one for one in history if hears(node.matcher, one, node.waitpoints)]
            return len({_distinct(node, one) for one in heard}) >= node.n
        case AllOf():
            return sum(met_by(one, history) for one in node.members) == len(node.members)
        case AnyOf():
            return sum(met_by(one, history) for one in node.members) > 0
        case _:
            raise AssertionError(node)


def _distinct(node: Count, signal: SignalFacts) -> tuple[str, ...]:
    match node.count_kind:
        case "DistinctWaitpoints":
            return (signal.waitpoint_id,)
        case "DistinctSignals":
            return (signal.signal_id,)
        case "DistinctSources":
            return signal.source_type, signal.source_identity


def hears(matcher: Matcher | None, signal: SignalFacts, keys: Sequence[str]) -> bool:
    if signal.waitpoint_key not in keys:
        return False
    return matcher.name == signal.name if isinstance(matcher, ByName) else True
