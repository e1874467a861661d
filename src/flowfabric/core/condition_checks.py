"""Whether a suspend hangs together: its waitpoints, its condition and its timeout.

The checks run in the order of `_CHECKS`, each over the whole request, so that of several faults
the same one is always reported.
"""

from collections.abc import Callable, Iterator, Sized
from typing import Final

import msgspec

from flowfabric.core.bounds import MAX_CONDITION_BYTES, MAX_WAITPOINTS, check_number
from flowfabric.core.conditions import (
    AllOf,
    AnyOf,
    ByName,
    Condition,
    Count,
    Matcher,
    OperatorOnly,
    TimeoutOnly,
    TreeNode,
    keys_of,
    leaves,
    matchers_of,
    walk,
)
from flowfabric.errors import InvalidInput

MAX_DEPTH: Final = 4
MAX_COUNT: Final = 1_000
# All counts of a tree together: what they gather is kept in one document.
MAX_COUNTED: Final = 2_000
CLOCK_SKEW_MS: Final = 600_000


class Fresh(msgspec.Struct, frozen=True, tag_field="type", tag="fresh", forbid_unknown_fields=True):
    """A waitpoint that begins with the suspension; one without an id is given a new one."""

    waitpoint_id: str = ""
    waitpoint_key: str = ""


class UsePending(
    msgspec.Struct, frozen=True, tag_field="type", tag="pending", forbid_unknown_fields=True
):
    """A waitpoint that was handed out before; only the primary one may be."""

    waitpoint_id: str


Binding = Fresh | UsePending


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a suspend that have to fit each other; element 0 of `waitpoints` is primary."""

    waitpoints: tuple[Binding, ...]
    condition: Condition
    has_timeout: bool = False
    timeout_at: int | None = None


def check_suspend(asked: Asked, now: int) -> None:
    """Refuse the first fault, in the order of the table; first of all what is too large."""
    _check_sizes(asked)
    for check in _CHECKS:
        check(asked, now)


def check_waitpoints(waitpoints: Sized) -> None:
    """Refuse more than a suspend may have."""
    check_number(waitpoints, "waitpoints", MAX_WAITPOINTS)


def _check_sizes(asked: Asked) -> None:
    """The only check whose cost no other bounds: it reads the request once."""
    check_waitpoints(asked.waitpoints)
    try:
        size = len(msgspec.msgpack.encode(asked.condition))
    except RecursionError:
        raise InvalidInput(f"resume_condition: depth exceeds cap {MAX_DEPTH}") from None
    if size > MAX_CONDITION_BYTES:
        raise InvalidInput(f"resume_condition: {size} bytes, at most {MAX_CONDITION_BYTES}")


def check_keys(keys: tuple[str, ...], condition: Condition) -> None:
    """Every key the condition names is bound, and every bound one is named."""
    named = _named_keys(condition, keys[0])
    bound = frozenset(keys)
    for key in named:
        if key not in bound:
            raise InvalidInput(f"referenced_waitpoint_key_missing_binding: {key}")
    for key in keys:
        if key not in named:
            raise InvalidInput(f"extra_binding_not_referenced_by_condition: {key}")


def _named_keys(condition: Condition, primary: str) -> dict[str, None]:
    """The keys a condition is about, in order; the primary's for a form that names none."""
    if condition.condition_type == "composite" and condition.tree is not None:
        named = dict.fromkeys(key for leaf in leaves(condition.tree) for key in keys_of(leaf))
        return named or {primary: None}
    return {condition.waitpoint_key or primary: None}


def _are_given(asked: Asked, _: int) -> None:
    if not asked.waitpoints:
        raise InvalidInput("waitpoints_empty")


def _are_distinct(asked: Asked, _: int) -> None:
    ids: set[str] = set()
    keys: set[str] = set()
    for i, binding in enumerate(asked.waitpoints):
        if binding.waitpoint_id in ids:
            raise InvalidInput(f"duplicate_waitpoint_id at waitpoints[{i}]")
        ids.add(binding.waitpoint_id)
        if isinstance(binding, Fresh):
            if binding.waitpoint_key in keys:
                raise InvalidInput(f"duplicate_waitpoint_key at waitpoints[{i}]")
            keys.add(binding.waitpoint_key)


def _fits_single(asked: Asked, _: int) -> None:
    primary, named = asked.waitpoints[0], asked.condition.waitpoint_key
    is_single = asked.condition.condition_type == "signal_set" and bool(named)
    if is_single and isinstance(primary, Fresh) and primary.waitpoint_key != named:
        raise InvalidInput("waitpoint_key_mismatch")


def _have_keys(asked: Asked, _: int) -> None:
    for i, binding in enumerate(asked.waitpoints[1:], start=1):
        if isinstance(binding, Fresh) and not binding.waitpoint_key:
            raise InvalidInput(f"additional_waitpoint_binding_empty_key at waitpoints[{i}]")


def _are_fresh(asked: Asked, _: int) -> None:
    for i, binding in enumerate(asked.waitpoints[1:], start=1):
        if not isinstance(binding, Fresh):
            raise InvalidInput(f"additional_waitpoint_binding_must_be_fresh at waitpoints[{i}]")


def _keys_fit(asked: Asked, _: int) -> None:
    # The key of a pending primary is known to the store only; it is asked in the step.
    keys = tuple(one.waitpoint_key for one in asked.waitpoints if isinstance(one, Fresh))
    if len(keys) == len(asked.waitpoints):
        check_keys(keys, asked.condition)


def _has_deadline(asked: Asked, _: int) -> None:
    if asked.condition.condition_type == "timeout_only" and not asked.has_timeout:
        raise InvalidInput("timeout_only_without_deadline")


def _names_are_set(asked: Asked, _: int) -> None:
    if "" in _all_names(asked.condition):
        raise InvalidInput("resume_condition: empty signal name (use Wildcard instead)")


def _all_names(condition: Condition) -> Iterator[str]:
    yield from condition.required_signal_names
    if condition.tree is not None:
        matchers: Iterator[Matcher | None] = (leaf.matcher for leaf in leaves(condition.tree))
        yield from (one.name for one in matchers if isinstance(one, ByName))


def _mode_is_known(asked: Asked, _: int) -> None:
    mode = asked.condition.signal_match_mode
    if asked.condition.condition_type == "signal_set" and mode not in ("", "any", "all"):
        raise InvalidInput(f"signal_match_mode: {mode[:64]}")


def _minimum_fits(asked: Asked, _: int) -> None:
    condition = asked.condition
    least = condition.minimum_signal_count
    if condition.condition_type == "signal_set" and not (1 <= least <= len(matchers_of(condition))):
        raise InvalidInput(f"minimum_signal_count: {least}")


def _timeout_lies_ahead(asked: Asked, now: int) -> None:
    if asked.timeout_at is not None and asked.timeout_at + CLOCK_SKEW_MS < now:
        raise InvalidInput("timeout_at_in_past")


def _has_tree(asked: Asked, _: int) -> None:
    condition = asked.condition
    if condition.condition_type == "composite":
        if condition.v != 1:
            raise InvalidInput(f"composite_version: {condition.v}")
        if condition.tree is None:
            raise InvalidInput("resume_condition: a composite needs a tree")


def _each_node(check: Callable[[TreeNode], str]) -> Callable[[Asked, int], None]:
    """A check of a composite, made at every node before the next check begins."""

    def run(asked: Asked, _: int) -> None:
        if asked.condition.condition_type != "composite" or asked.condition.tree is None:
            return
        for at in walk(asked.condition.tree):
            fault = check(at)
            if fault:
                raise InvalidInput(f"{fault} at path {at.path or '<root>'}")

    return run


def _too_deep(at: TreeNode) -> str:
    if isinstance(at.node, AllOf | AnyOf | Count) and at.depth > MAX_DEPTH:
        return f"depth {at.depth} exceeds cap {MAX_DEPTH}"
    return ""


def _not_allowed(at: TreeNode) -> str:
    plain = isinstance(at.node, OperatorOnly | TimeoutOnly)
    return "not_allowed_in_composite" if plain else ""


def _no_members(at: TreeNode) -> str:
    match at.node:
        case AllOf(members=()):
            return "allof_empty_members"
        case AnyOf(members=()):
            return "anyof_empty_members"
        case _:
            return ""


def _counts_nothing(at: TreeNode) -> str:
    return "count_n_zero" if isinstance(at.node, Count) and at.node.n < 1 else ""


def _counts_nowhere(at: TreeNode) -> str:
    nowhere = isinstance(at.node, Count) and not at.node.waitpoints
    return "count_waitpoints_empty" if nowhere else ""


def _counts_too_much(at: TreeNode) -> str:
    node = at.node
    if not isinstance(node, Count):
        return ""
    keys = len(set(node.waitpoints))
    if node.count_kind == "DistinctWaitpoints" and node.n > keys:
        return f"count_exceeds_waitpoint_set: n={node.n} > waitpoints={keys}"
    return f"count_exceeds_cap: n={node.n} > {MAX_COUNT}" if node.n > MAX_COUNT else ""


def _counts_are_bounded(asked: Asked, _: int) -> None:
    condition = asked.condition
    if condition.tree is not None:
        total = sum(leaf.n for leaf in leaves(condition.tree) if isinstance(leaf, Count))
        if total > MAX_COUNTED:
            raise InvalidInput(f"count_exceeds_cap: all counts together {total} > {MAX_COUNTED}")


_CHECKS: Final[tuple[Callable[[Asked, int], None], ...]] = (
    _are_given,
    _are_distinct,
    _fits_single,
    _have_keys,
    _are_fresh,
    _keys_fit,
    _has_deadline,
    _names_are_set,
    _mode_is_known,
    _minimum_fits,
    _timeout_lies_ahead,
    _has_tree,
    _each_node(_too_deep),
    _each_node(_not_allowed),
    _each_node(_no_members),
    _each_node(_counts_nothing),
    _each_node(_counts_nowhere),
    _each_node(_counts_too_much),
    _counts_are_bounded,
)
