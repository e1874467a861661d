"""How the inbound edges of a member combine: the policy that callers send."""

from collections.abc import Mapping
from typing import Final

import msgspec

from flowfabric.core.graph import Group, GroupPolicy, OnSatisfied
from flowfabric.errors import InvalidInput

MAX_K: Final = 2**31 - 1
_MOST_BYTES: Final = 1_024

_KINDS: Final[dict[str, GroupPolicy]] = {"all_of": "all_of", "any_of": "any_of", "quorum": "quorum"}
_CHOICES: Final[dict[str, OnSatisfied]] = {
    "cancel_remaining": "cancel_remaining",
    "let_run": "let_run",
}
_MEMBERS: Final[dict[GroupPolicy, frozenset[str]]] = {
    "all_of": frozenset({"kind"}),
    "any_of": frozenset({"kind", "on_satisfied"}),
    "quorum": frozenset({"kind", "k", "on_satisfied"}),
}


class EdgePolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """`all_of` needs every edge, `any_of` one, `quorum` any `k`."""

    kind: GroupPolicy
    k: int = 0
    on_satisfied: OnSatisfied = ""


def read_edge_policy(raw: object) -> EdgePolicy:
    """The policy of a request, or the first thing that is wrong with it."""
    if isinstance(raw, msgspec.Raw):
        raw = _decoded(bytes(raw))
    if isinstance(raw, EdgePolicy):
        raw = msgspec.to_builtins(raw)
    if not isinstance(raw, Mapping):
        raise InvalidInput(f"policy: expected an object, got {type(raw).__name__}")
    kind = _KINDS.get(_text(raw, "kind"))
    if kind == "quorum":
        _check_k(raw.get("k"))
    if kind is None:
        raise InvalidInput(f"unsupported_policy_variant: {_short(raw.get('kind'))}")
    _check_members(raw, kind)
    if kind == "all_of":
        return EdgePolicy("all_of")
    choice = _CHOICES.get(_text(raw, "on_satisfied"))
    if choice is None:
        raise InvalidInput("policy: on_satisfied: expected cancel_remaining or let_run")
    return EdgePolicy(kind, raw["k"] if kind == "quorum" else 0, choice)


def _decoded(text: bytes) -> object:
    if len(text) > _MOST_BYTES:
        raise InvalidInput(f"policy: at most {_MOST_BYTES} bytes, got {len(text)}")
    return msgspec.json.decode(text)


def policy_of(group: Group) -> EdgePolicy:
    """The policy of a stored group."""
    k = group.k if group.policy == "quorum" else 0
    return EdgePolicy(group.policy, k, group.on_satisfied)


def _text(raw: Mapping[str, object], name: str) -> str:
    value = raw.get(name)
    return value if isinstance(value, str) else ""


def _check_k(k: object) -> None:
    if type(k) is not int:
        raise InvalidInput(f"policy: k: expected an integer, got {type(k).__name__}")
    if k < 1:
        raise InvalidInput("quorum k must be >= 1")
    if k > MAX_K:
        raise InvalidInput(f"policy: k: at most {MAX_K}")


def _check_members(raw: Mapping[str, object], kind: GroupPolicy) -> None:
    unknown = sorted(str(name) for name in raw.keys() - _MEMBERS[kind])
    if unknown:
        raise InvalidInput(f"policy: {kind} has no member {_short(unknown[0])}")


def _short(value: object) -> str:
    return str(value)[:64] if isinstance(value, str) else type(value).__name__
