"""VIEWS as Lua source: one function that moves a record between the sorted sets of its partition.

Written out view by view, because every write of every record runs through it.
"""

from typing import Final

from flowfabric.backend.valkey.layout import AT
from flowfabric.core.views import VIEWS, View

# Kept as counters per lane and state; as a view only of what does not wait in a queue, because a
# queue is in the lane's own order too.
_COUNTED: Final = "by_state"
# A view keyed by one of these needs no such part in its name: its partition's tag says it, or the
# whole partition is one view and readers look at the namespace of what they find.
_IMPLIED: Final = ("part", "namespace")
_MEMBER: Final = "execution_id"
# What a record never changes.
_FIXED: Final = frozenset({"part", "namespace", "lane", "created_at", "execution_id"})


def render_reindex() -> str:
    """`ff.reindex(c, tag, id, before, after)`; `before` is nil for a new record, `after` for one
    that is purged."""
    views = [_view(view) for view in VIEWS if view.name != _COUNTED]
    return "\n".join(
        [
            "function ff.reindex(c, tag, id, before, after)",
            "local member, partition = ff.member_of(id), ff.partition_of(c, tag)",
            "local lane = ff.lane_of(partition, after or before)",
            "local was, is, old, new",
            *views,
            _COUNTERS,
            _TAGS,
            "end",
        ]
    )


def partition_views() -> tuple[str, ...]:
    """The views a partition has one of."""
    return tuple(view.name for view in VIEWS if set(view.key) <= set(_IMPLIED))


def _view(view: View) -> str:
    if _FIXED.issuperset((*view.key, *view.order)) and not view.states:
        return _fixed(view)
    lines = [
        f"-- {view.name}",
        f"was = before and {_belongs(view, 'before')}",
        f"is = after and {_belongs(view, 'after')}",
        "if was or is then",
        f"old = was and {_name(view, 'before')}",
        f"new = is and {_name(view, 'after')}",
        "if was and old ~= new then ff.remove(c, old, member) end",
        f"if is and (old ~= new or {_order(view, 'before')} ~= {_order(view, 'after')}) then",
        f"ff.add(c, new, {_order(view, 'after')}, member)",
        *_noticed(view),
        "end",
        "end",
    ]
    return "\n".join(lines)


def _fixed(view: View) -> str:
    """A view in which a record stands in one place from its birth to its purge."""
    return "\n".join(
        [
            f"-- {view.name}",
            "if not before then",
            f"ff.add(c, {_name(view, 'after')}, {_order(view, 'after')}, member)",
            "elseif not after then",
            f"ff.remove(c, {_name(view, 'before')}, member)",
            "end",
        ]
    )


def _noticed(view: View) -> list[str]:
    match view.name:
        case "claimable":
            return [
                "ff.queued(c, tag, after, new)",
                "if not was then c.rings[lane.bell] = true end",
            ]
        case "timers":
            return [f"ff.timed(c, tag, after[{AT['due_at']}])"]
        case _:
            return []


def _belongs(view: View, record: str) -> str:
    state = f"{record}[{AT['state']}]"
    terms = []
    if view.states:
        terms.append("(" + " or ".join(f"{state} == '{one}'" for one in sorted(view.states)) + ")")
    terms += [_is_set(name, record) for name in view.where]
    terms += [f"not ({_is_set(name, record)})" for name in view.unless]
    return " and ".join(terms)


def _is_set(name: str, record: str) -> str:
    value = f"{record}[{AT[name]}]"
    return f"{value} ~= ''" if name.endswith("_id") else f"{value} ~= 0"


def _name(view: View, record: str) -> str:
    if view.name == "claimable":
        return f"ff.queue_in(partition, lane, {record})"
    if view.name == "worker":
        return f"ff.worker_in(partition, {record}[{AT['worker_instance_id']}])"
    if view.name in partition_views():
        return f"partition.{view.name}"
    parts = [f"'ff:v:' .. tag .. ':{view.name}'"]
    parts += [f"':' .. {record}[{AT[name]}]" for name in view.key if name not in _IMPLIED]
    return " .. ".join(parts)


def _order(view: View, record: str) -> str:
    (first, *_) = view.order
    return "0" if first == _MEMBER else f"{record}[{AT[first]}]"


_COUNTERS: Final = """-- by_state
local left, entered = before and ff.bucket_of(before), after and ff.bucket_of(after)
was = before and ff.resting_in(partition, lane, before, left)
is = after and ff.resting_in(partition, lane, after, entered)
if was and was ~= is then ff.remove(c, was, member) end
if is then
old, new = was == is and ff.resting_order(before), ff.resting_order(after)
if old ~= new then ff.add(c, is, new, member) end
end
if left ~= entered then
local counts = lane.counts
if left then counts[left] = (counts[left] or 0) - 1 end
if entered then counts[entered] = (counts[entered] or 0) + 1 end
end"""

_TAGS: Final = f"""-- tag
old = before and before[{AT["shown"]}] or ''
new = after and after[{AT["shown"]}] or ''
if old ~= '' or new ~= '' then ff.reindex_tags(c, tag, member, before or after, old, new) end"""
