"""VIEWS as Lua source: one function that moves a record between the sorted sets it stands in.

Written out view by view, because every write of every record runs through it. It stands behind the
file `views`, in the same block, and uses what is local there.
"""

from typing import Final

from flowfabric.backend.valkey.keys import OF_PARTITIONS
from flowfabric.backend.valkey.layout import AT, INDEXED_TAGS
from flowfabric.core.views import VIEWS, View

# Kept as counters per lane and state; as a view only of what does not wait in a queue, because a
# queue is in the lane's own order too.
_COUNTED: Final = "by_state"
# A view keyed by one of these needs no such part in its name: its partition's tag says it, or the
# whole index tag has one view and readers look at the namespace of what they find.
_IMPLIED: Final = ("part", "namespace")
_MEMBER: Final = "execution_id"
# The sets that lie with the record's partition.
_OWN: Final = "sets_of(ff.tag_of(id))"
# What a record never changes.
_FIXED: Final = frozenset({"part", "namespace", "lane", "created_at", "execution_id"})
# The state of the record `before` and `after` a write.
_STATE: Final = {"before": "from", "after": "to"}


def render_reindex() -> str:
    """`ff.reindex(c, id, before, after)`; `before` is nil for a new record, `after` for one
    that is purged."""
    views = [view for view in VIEWS if view.name != _COUNTED]
    return "\n".join(
        [
            *(_states(view) for view in views if len(view.states) > 1),
            "function ff.reindex(c, id, before, after)",
            _BEGIN,
            *map(_view, views),
            _COUNTERS,
            _TAGS,
            "end",
        ]
    )


def index_views() -> tuple[str, ...]:
    """The views of which an index tag has one each."""
    return tuple(view.name for view in VIEWS if set(view.key) <= set(_IMPLIED))


def _states(view: View) -> str:
    """The states of a view, as a table of truths."""
    members = ", ".join(f"{state} = true" for state in sorted(view.states))
    return f"local IN_{view.name.upper()} = {{ {members} }}"


def _view(view: View) -> str:
    if _FIXED.issuperset((*view.key, *view.order)) and not view.states:
        return _fixed(view)
    if view.name in index_views():
        return _shared(view)
    if view.name in _IN_FLOWS:
        return _IN_FLOWS[view.name]
    return _keyed(view)


def _fixed(view: View) -> str:
    """A view in which a record stands in one place from its creation to its purge."""
    sets = _OWN if view.name in OF_PARTITIONS else "views"
    return f"""-- {view.name}
if not before then
add(c, {sets}.{view.name}, {_order(view, "after")}, id)
elseif not after then
remove(c, {sets}.{view.name}, id)
end"""


def _shared(view: View) -> str:
    """A view of a whole index tag, in which a record only ever changes its place."""
    return f"""-- {view.name}
was = {_belongs(view, "before")}
if {_belongs(view, "after")} then
if not was or {_order(view, "before")} ~= {_order(view, "after")} then
add(c, views.{view.name}, {_order(view, "after")}, id)
{_noticed(view)}
end
elseif was then
remove(c, views.{view.name}, id)
end"""


def _keyed(view: View) -> str:
    return f"""-- {view.name}
old = {_belongs(view, "before")} and {_name(view, "before")}
new = {_belongs(view, "after")} and {_name(view, "after")}
if old and old ~= new then remove(c, old, id) end
if new and (old ~= new or {_order(view, "before")} ~= {_order(view, "after")}) then
add(c, new, {_order(view, "after")}, id)
{_noticed(view)}
end
{_left(view)}"""


def _left(view: View) -> str:
    """Of a queue it matters, too, what leaves it or moves back in it."""
    if view.name != "claimable":
        return ""
    moved = f"{_order(view, 'before')} ~= {_order(view, 'after')}"
    return f"if old and (old ~= new or {moved}) then unqueued(c, old) end"


def _noticed(view: View) -> str:
    match view.name:
        case "claimable":
            return f"queued(c, new, after[{AT['rank']}], not old)"
        case "timers":
            return f"timed(c, views.tag, after[{AT['due_at']}])"
        case _:
            return ""


def _belongs(view: View, record: str) -> str:
    state = _STATE[record]
    match len(view.states):
        case 0:
            terms = [record]
        case 1:
            (only,) = view.states
            terms = [f"{state} == '{only}'"]
        case _:
            terms = [f"IN_{view.name.upper()}[{state}]"]
    terms += [_is_set(name, record) for name in view.where]
    terms += [f"not ({_is_set(name, record)})" for name in view.unless]
    return " and ".join(terms)


def _is_set(name: str, record: str) -> str:
    value = f"{record}[{AT[name]}]"
    return f"{value} ~= ''" if name.endswith("_id") else f"{value} ~= 0"


def _name(view: View, record: str) -> str:
    match view.name:
        case "claimable":
            return f"queue_in(lane, {record}[{AT['req_set']}])"
        case "worker":
            return f"worker_in(views, {record}[{AT['worker_instance_id']}])"
        case other:
            raise ValueError(f"no sets are known for the view {other}")


def _order(view: View, record: str) -> str:
    (first, *_) = view.order
    return "0" if first == _MEMBER else f"{record}[{AT[first]}]"


_BEGIN: Final = f"""
begin_moves(c, id)
local views, any = sets_of(ff.index_tag_of(c, id)), after or before
local lane = lane_of(views, any[{AT["namespace"]}], any[{AT["lane"]}])
local from, to = before and before[{AT["state"]}], after and after[{AT["state"]}]
local was, old, new"""

_FLOW: Final = f"""-- flow
if any[{AT["flow_id"]}] ~= '' and (from ~= to or before[{AT["flow_id"]}] == '') then
local members = set_of(c, {_OWN}.prefix .. 'flow:' .. any[{AT["flow_id"]}])
if after then
add(c, members, FLOW_RANGES[to] + after[{AT["created_at"]}], id)
else
remove(c, members, id)
end
end"""

_TIED: Final = (
    f"({{0}}[{AT['on_parent_end']}] == '' and not FINAL[{{0}}[{AT['state']}]]"
    " and CHILD_RANGES[1] or CHILD_RANGES[0])"
)
# Only members of flows have parents.
_CHILDREN: Final = f"""-- children
if any[{AT["flow_id"]}] ~= '' and any[{AT["parent_id"]}] ~= '' then
local children = set_of(c, {_OWN}.prefix .. 'children:' .. any[{AT["parent_id"]}])
was, new = before and {_TIED.format("before")}, after and {_TIED.format("after")}
if not new then
remove(c, children, id)
elseif was ~= new then
add(c, children, new + after[{AT["created_at"]}], id)
end
end"""
_IN_FLOWS: Final = {"flow": _FLOW, "children": _CHILDREN}

_COUNTERS: Final = f"""-- by_state
local left = from == 'blocked' and 'blocked:' .. before[{AT["reason"]}] or from
local entered = to == 'blocked' and 'blocked:' .. after[{AT["reason"]}] or to
old, new = before and resting_in(lane, before, left), after and resting_in(lane, after, entered)
if old and old ~= new then remove(c, old, id) end
if new and (old ~= new or resting_order(before) ~= resting_order(after)) then
add(c, new, resting_order(after), id)
end
if left ~= entered then
count_moves(c, lane, left, entered, 1)
local trace = c.trace
if trace then trace.lane, trace.left, trace.entered = lane, left, entered end
end"""

_TAGS: Final = f"""-- tag
old, new = before and before[{AT[INDEXED_TAGS]}] or '', after and after[{AT[INDEXED_TAGS]}] or ''
if old ~= '' or new ~= '' then reindex_tags(c, views, id, any, old, new) end"""
