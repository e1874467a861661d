"""Whether the parts of a suspend fit each other: its waitpoints, its condition and its timeout.

Each check runs over the whole request before the next one begins, so that of several faults the
same one is always reported.
"""

from collections.abc import Iterator, Sized
from operator import itemgetter
from typing import Final

import msgspec

from flowfabric.core.bounds import MAX_CONDITION_BYTES, MAX_WAITPOINTS, check_number
from flowfabric.core.conditions import (
    AllOf,
    AnyOf,
    Condition,
    Count,
    Node,
    OperatorOnly,
    TimeoutOnly,
    TreeNode,
    keys_of,
    leaves,
    matchers_of,
    tree_names,
    walk,
)
from flowfabric.errors import InvalidInput

MAX_DEPTH: Final = 4
MAX_COUNT: Final = 1_000
# All counts of a tree together: what they count is kept in one document.
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
    """Refuse the first fault; what is too large comes before all others."""
    _check_sizes(asked)
    if not asked.waitpoints:
        raise InvalidInput("waitpoints_empty")
    _check_distinct(asked.waitpoints)
    _check_primary(asked.waitpoints[0], asked.condition)
    _check_additional(asked.waitpoints)
    # Only the store knows the key of a pending primary waitpoint; it is checked in the same step.
    keys = tuple(one.waitpoint_key for one in asked.waitpoints if isinstance(one, Fresh))
    if len(keys) == len(asked.waitpoints):
        check_keys(keys, asked.condition)
    if asked.condition.condition_type == "timeout_only" and not asked.has_timeout:
        raise InvalidInput("timeout_only_without_deadline")
    _check_names(asked.condition)
    if asked.timeout_at is not None and asked.timeout_at + CLOCK_SKEW_MS < now:
        raise InvalidInput("timeout_at_in_past")
    if asked.condition.condition_type == "composite":
        _check_composite(asked.condition)
    if asked.condition.tree is not None:
        _check_total(asked.condition.tree)


def check_waitpoints(waitpoints: Sized) -> None:
    """Refuse more than a suspend may have."""
    check_number(waitpoints, "waitpoints", MAX_WAITPOINTS)


def _check_sizes(asked: Asked) -> None:
    """Bounds the cost of all checks behind it; it reads the request once."""
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


def _check_distinct(waitpoints: tuple[Binding, ...]) -> None:
    ids: set[str] = set()
    keys: set[str] = set()
    for i, binding in enumerate(waitpoints):
        if binding.waitpoint_id in ids:
            raise InvalidInput(f"duplicate_waitpoint_id at waitpoints[{i}]")
        ids.add(binding.waitpoint_id)
        if isinstance(binding, Fresh):
            if binding.waitpoint_key in keys:
                raise InvalidInput(f"duplicate_waitpoint_key at waitpoints[{i}]")
            keys.add(binding.waitpoint_key)


def _check_primary(primary: Binding, condition: Condition) -> None:
    named = condition.waitpoint_key
    is_single = condition.condition_type == "signal_set" and bool(named)
    if is_single and isinstance(primary, Fresh) and primary.waitpoint_key != named:
        raise InvalidInput("waitpoint_key_mismatch")


def _check_additional(waitpoints: tuple[Binding, ...]) -> None:
    additional = list(enumerate(waitpoints))[1:]
    for i, binding in additional:
        if isinstance(binding, Fresh) and not binding.waitpoint_key:
            raise InvalidInput(f"additional_waitpoint_binding_empty_key at waitpoints[{i}]")
    for i, binding in additional:
        if not isinstance(binding, Fresh):
            raise InvalidInput(f"additional_waitpoint_binding_must_be_fresh at waitpoints[{i}]")


def _check_names(condition: Condition) -> None:
    if "" in condition.required_signal_names or "" in tree_names(condition):
        raise InvalidInput("resume_condition: empty signal name (use Wildcard instead)")
    if condition.condition_type == "signal_set":
        mode, least = condition.signal_match_mode, condition.minimum_signal_count
        if mode not in ("", "any", "all"):
            raise InvalidInput(f"signal_match_mode: {mode[:64]}")
        if not 1 <= least <= len(matchers_of(condition)):
            raise InvalidInput(f"minimum_signal_count: {least}")


def _check_composite(condition: Condition) -> None:
    if condition.v != 1:
        raise InvalidInput(f"composite_version: {condition.v}")
    if condition.tree is None:
        raise InvalidInput("resume_condition: a composite needs a tree")
    # Before any other look at the tree: the paths of a very deep one are very long.
    for at in walk(condition.tree):
        if isinstance(at.node, AllOf | AnyOf | Count) and at.depth > MAX_DEPTH:
            raise _at(at.path, f"depth {at.depth} exceeds cap {MAX_DEPTH}")
    found = [(rank, at.path, fault) for at in walk(condition.tree) for rank, fault in _faults(at)]
    if found:
        _, path, fault = min(found, key=itemgetter(0))
        raise _at(path, fault)


def _at(path: str, fault: str) -> InvalidInput:
    return InvalidInput(f"{fault} at path {path or '<root>'}")


def _faults(at: TreeNode) -> Iterator[tuple[int, str]]:
    """What is wrong with a node. The fault of the lowest rank is reported, of the first node."""
    match at.node:
        case OperatorOnly() | TimeoutOnly():
            yield 0, "not_allowed_in_composite"
        case AllOf(members=()):
            yield 1, "allof_empty_members"
        case AnyOf(members=()):
            yield 1, "anyof_empty_members"
        case Count(n, kind, waitpoints):
            keys = len(set(waitpoints))
            if n < 1:
                yield 2, "count_n_zero"
            if not keys:
                yield 3, "count_waitpoints_empty"
            if kind == "DistinctWaitpoints" and n > keys:
                yield 4, f"count_exceeds_waitpoint_set: n={n} > waitpoints={keys}"
            elif n > MAX_COUNT:
                yield 4, f"count_exceeds_cap: n={n} > {MAX_COUNT}"


def _check_total(tree: Node) -> None:
    total = sum(leaf.n for leaf in leaves(tree) if isinstance(leaf, Count))
    if total > MAX_COUNTED:
        raise InvalidInput(f"count_exceeds_cap: all counts together {total} > {MAX_COUNTED}")
