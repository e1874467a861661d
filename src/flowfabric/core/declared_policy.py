"""The policy of a submit by name: what it states, and for the rest what the task declares."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from flowfabric.core.policy import RawPolicy, freeze, is_cacheable, stated_members

# Options of their own stand in these members; in all others the whole member is one option.
_PARTS: Final = (
    "retry_policy",
    "timeout_policy",
    "suspension_policy",
    "routing_requirements",
    "stream_policy",
)


def completed_policy(stated: RawPolicy, declared: str) -> str:
    """As text. A member that is stated as null counts as left out."""
    if stated is None or stated in ("", b""):
        return declared
    if isinstance(stated, str | bytes) and is_cacheable(stated) and is_cacheable(declared):
        return _complete_once(stated, declared)
    return _complete(stated, declared)


def _complete(stated: RawPolicy, declared: str) -> str:
    own: dict[str, Any] = msgspec.json.decode(declared) if declared else {}
    given = stated_members(stated)
    members = {**own, **given}
    for name in _PARTS:
        if isinstance(part := given.get(name), Mapping) and name in own:
            members[name] = {**own[name], **part}
    retry = members.get("retry_policy")
    if isinstance(retry, dict) and "retry_policy" not in own:
        # The task declares no retries, which is not the default of a policy that has any.
        retry.setdefault("max_retries", 0)
    if "concurrency_key" in given and "concurrency_limit" not in given:
        # A limit belongs to its key.
        members.pop("concurrency_limit", None)
    timeouts = given.get("timeout_policy")
    if isinstance(timeouts, Mapping) and "max_reclaim_count" in timeouts:
        # The same option in its other place.
        members = {**members, "max_reclaim_count": timeouts["max_reclaim_count"]} | given
    return freeze(members)


_complete_once: Final = lru_cache(maxsize=1024)(_complete)
