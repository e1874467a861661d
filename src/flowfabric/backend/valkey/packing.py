"""Records, new executions, plans and claims as packed arrays, and back.

What goes in: one msgpack argument per batch, and bodies as raw arguments behind it, named by their
number. Unset is `false` (in requests), `""` or 0 (in rows), never nil; binary is never inside
msgpack, because the functions' decoder knows only text. What comes out: a head in msgpack, and
bodies as raw elements behind it.
"""

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import msgspec

from flowfabric.backend.valkey.envelopes import seal_step, step_address
from flowfabric.backend.valkey.graph_rows import pack_edit
from flowfabric.backend.valkey.layout import (
    AT,
    ATTEMPT,
    INDEXED_TAGS,
    OWN_EVENT_FIELDS,
    PLAIN,
    RECORD,
    RECORD_DEFAULTS,
    SHARED_EVENT_FIELDS,
    STATIC,
    Static,
)
from flowfabric.backend.valkey.requests import OwnOfPlan
from flowfabric.core.documents import Document
from flowfabric.core.events import LogEntry
from flowfabric.core.journal import JournalEntry
from flowfabric.core.plan import Blob, EndAttempt, Event, PauseAttempt, Plan, Timer
from flowfabric.core.record import Attempt, Record
from flowfabric.core.transition import NAMED, TIMERS, op_key
from flowfabric.errors import Corruption

_encoder: Final = msgspec.msgpack.Encoder()
_json: Final = msgspec.json.Encoder()
encode: Final = _encoder.encode
decode: Final = msgspec.msgpack.Decoder().decode
_decode_tags: Final = msgspec.json.Decoder(dict[str, str]).decode
_decode_static: Final = msgspec.json.Decoder(Static).decode
_astuple: Final = msgspec.structs.astuple
_ORDER: Final = Record.__struct_fields__
_static_of: Final = itemgetter(*(_ORDER.index(name) for name in STATIC))
# The tail of a record that is just being made is all defaults, unless it has tags.
_HEAD_SIZE: Final = RECORD.index("started_at")
_HEAD: Final = RECORD[:_HEAD_SIZE]
_TAIL: Final = tuple(
    name for name in RECORD[_HEAD_SIZE:] if name not in ("attempt", "tags", INDEXED_TAGS)
)
_head_of: Final = itemgetter(*(_ORDER.index(name) for name in _HEAD))
_tail_of: Final = itemgetter(*(_ORDER.index(name) for name in _TAIL))
_TAIL_DEFAULTS: Final = tuple(RECORD_DEFAULTS[RECORD.index(name)] for name in _TAIL)

_TAGS_AT: Final = RECORD.index("tags")
_FAMILIES_AT: Final = SHARED_EVENT_FIELDS.index("families")
_LOGGED_TAGS_AT: Final = SHARED_EVENT_FIELDS.index("tags")
_DETAILS_AT: Final = SHARED_EVENT_FIELDS.index("details")
_ATTEMPT_AT: Final = RECORD.index("attempt")
UNREADABLE: Final = (msgspec.MsgspecError, TypeError, ValueError, IndexError)
_in_order: Final = itemgetter(*((*RECORD, *STATIC).index(name) for name in _ORDER))
_attempt_values: Final = itemgetter(
    *(
        RECORD.index(name)
        for name in (
            "attempt_index",
            "attempt_id",
            "attempt_type",
            "lease_acquired_at",
            "lease_id",
            "lease_epoch",
            "worker_id",
            "worker_instance_id",
        )
    )
)

# In the place of an argument's number: what is there stays, or goes.
_LEFT_ALONE: Final = -1
_DROPPED: Final = 0

Body = bytes | str


class Args(msgspec.Struct):
    """The raw arguments behind a batch; each body is named by its number."""

    bodies: list[Body] = []
    # What items of the batch have in common, by the identity of what it was made from.
    shared: dict[object, Any] = {}
    once: dict[bytes, int] = {}

    def put(self, body: Body) -> int:
        # The batch itself is argument 1.
        self.bodies.append(body)
        return len(self.bodies) + 1

    def put_all(self, bodies: list[bytes]) -> int:
        """The number of the first; the others follow."""
        first = len(self.bodies) + 2
        self.bodies += bodies
        return first

    def put_once(self, body: bytes) -> int:
        """The number of a body that others may have put before."""
        number = self.once.get(body)
        if number is None:
            self.bodies.append(body)
            number = self.once[body] = len(self.bodies) + 1
        return number


def static_rest(record: Record) -> str:
    """What of a record's static text follows its id."""
    return _json.encode(_static_of(_astuple(record))[1:]).decode()[1:]


def static_text(execution_id: str, record: Record) -> str:
    return f'["{execution_id}",{static_rest(record)}'


def row_of(record: Record, searchable: frozenset[str]) -> list[Any]:
    """A record as the functions hold it, without trailing defaults."""
    values = _astuple(record)
    head = list(_head_of(values))
    if record.attempt is None and not record.tags and _tail_of(values) == _TAIL_DEFAULTS:
        return head
    row = list(RECORD_DEFAULTS)
    row[:_HEAD_SIZE] = head
    for name, value in zip(_TAIL, _tail_of(values), strict=True):
        row[AT[name] - 1] = value
    if record.attempt is not None:
        row[AT["attempt"] - 1] = [getattr(record.attempt, name) for name in ATTEMPT]
    row[AT["tags"] - 1], row[AT[INDEXED_TAGS] - 1] = (
        tags_text(record.tags),
        indexed_tags(record.tags, searchable),
    )
    while row[-1] == RECORD_DEFAULTS[len(row) - 1]:
        row.pop()
    return row


def tags_text(tags: Mapping[str, str]) -> str:
    return _json.encode(tags).decode() if tags else ""


def indexed_tags(tags: Mapping[str, str], searchable: frozenset[str]) -> list[str] | str:
    """The tags a deployment searches by, flat; "" when there are none."""
    found = [text for name in sorted(searchable & tags.keys()) for text in (name, tags[name])]
    return found or ""


def record_from(row: bytes, static: bytes) -> Record:
    try:
        return record_of(decode(row), static)
    except UNREADABLE as fault:
        raise Corruption(f"record: cannot be read: {fault}") from fault


def record_at(bodies: Sequence[bytes], row: int, static: int) -> Record | None:
    """The record whose parts an answer names by their numbers; None without one."""
    return record_from(bodies[row], bodies[static]) if row else None


def record_of(values: list[Any], static: bytes) -> Record:
    """Built by position, because the names of so many fields take longer than the rest."""
    values += RECORD_DEFAULTS[len(values) :]
    tags, attempt = values[_TAGS_AT], values[_ATTEMPT_AT]
    values[_TAGS_AT] = _decode_tags(tags) if tags else {}
    if attempt:
        values[_ATTEMPT_AT] = _begun(values) if attempt == PLAIN else attempt_of(attempt)
    else:
        values[_ATTEMPT_AT] = None
    values += _astuple(_decode_static(static))
    return Record(*_in_order(values))


def _begun(record: list[Any]) -> Attempt:
    """An attempt that only began: its record tells it all."""
    own = _attempt_values(record)
    index, attempt_id, kind, started_at, lease_id, lease_epoch, worker_id, instance_id = own
    return Attempt(
        index=index,
        attempt_id=attempt_id,
        type=kind,
        state="started",
        started_at=started_at,
        lease_id=lease_id,
        lease_epoch=lease_epoch,
        worker_id=worker_id,
        worker_instance_id=instance_id,
    )


def attempt_from(row: bytes) -> Attempt:
    return attempt_of(decode(row))


def attempt_of(values: list[Any]) -> Attempt:
    return Attempt(**dict(zip(ATTEMPT, values, strict=False)))


def document_from(stored: bytes) -> Document:
    first_at, last_at, body = stored.split(b" ", 2)
    return Document(body, int(first_at), int(last_at))


def entries_of(group: list[Any]) -> Iterator[LogEntry]:
    """The entries of a group of events."""
    shared = dict(zip(SHARED_EVENT_FIELDS, group, strict=False))
    shared["families"] = tuple(shared["families"].split(",")) if shared["families"] else ()
    shared["tags"] = _pairs(shared["tags"])
    shared["details"] = _pairs(shared["details"])
    for start in range(len(SHARED_EVENT_FIELDS), len(group), len(OWN_EVENT_FIELDS)):
        own = zip(OWN_EVENT_FIELDS, group[start : start + len(OWN_EVENT_FIELDS)], strict=True)
        yield LogEntry(**shared, **dict(own))


def pack_entry(entry: LogEntry) -> list[Any]:
    """An entry as a group of its own."""
    shared = [getattr(entry, name) for name in SHARED_EVENT_FIELDS]
    shared[_FAMILIES_AT] = ",".join(entry.families)
    shared[_LOGGED_TAGS_AT], shared[_DETAILS_AT] = _flat(entry.tags), _flat(entry.details)
    return [*shared, *(getattr(entry, name) for name in OWN_EVENT_FIELDS)]


def _flat(pairs: Mapping[str, str]) -> list[str]:
    return [text for pair in pairs.items() for text in pair]


def _pairs(flat: list[str] | str) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True)) if flat else {}


# ---- plans

_RELATIVE: Final = tuple((name, AT[instant]) for name, instant in TIMERS)
_NAMED: Final = tuple((name, AT[instant]) for name, instant in NAMED)


def pack_plan(plan: Plan, args: Args, searchable: frozenset[str]) -> list[Any]:
    packed = _shape(plan, args, searchable)
    fence = plan.guard.fence
    packed[0] = plan.target
    packed[4] = (fence.lease_id, fence.lease_epoch, fence.attempt_id) if fence else False
    packed[5] = op_key(plan) or False
    return packed


def flat_plan(plan: Plan, args: Args, searchable: frozenset[str]) -> OwnOfPlan:
    """What is a plan's own, and the number of what it has in common with others of its batch."""
    fence = plan.guard.fence
    shape = _shape_number(plan, args, searchable)
    result, body = _body(plan, "result", args), _body(plan, "input", args)
    if fence is None:
        return OwnOfPlan(shape, plan.target, "", 0, "", "", result, body)
    lease, epoch, attempt = fence.lease_id, fence.lease_epoch, fence.attempt_id
    # By position: names would cost every completion a tenth more here.
    return OwnOfPlan(shape, plan.target, lease, epoch, attempt, op_key(plan), result, body)


def _shape_number(plan: Plan, args: Args, searchable: frozenset[str]) -> int:
    """The rules make most plans of parts that never differ: what is made of the very same parts is
    packed once."""
    if _has_rare(plan):
        return args.put_once(encode(_shape(plan, args, searchable)))
    states, parts = plan.guard.states, (plan.set, plan.event, plan.attempt)
    parts_key = (plan.rule, plan.close_stream, id(states), *map(id, parts))
    number: int | None = args.shared.get(parts_key)
    if number is None:
        number = args.shared[parts_key] = args.put_once(encode(_shape(plan, args, searchable)))
    return number


def _body(plan: Plan, name: Blob, args: Args) -> int:
    if name not in plan.blobs:
        return _LEFT_ALONE
    body = plan.blobs[name]
    return _DROPPED if body is None else args.put(body)


def _shape(plan: Plan, args: Args, searchable: frozenset[str]) -> list[Any]:
    """A plan without what is its own."""
    guard = plan.guard
    packed: list[Any] = [
        False,
        plan.rule,
        list(guard.states),
        _changes(plan.set, searchable),
        False,
        False,
        pack_event(plan.event),
        _attempt_change(plan.attempt),
        plan.close_stream or False,
    ]
    if _has_rare(plan):
        packed += [
            _timer(plan.timer),
            [AT[name] for name in plan.stamp] or False,
            guard.version or False,
            guard.suspension_id or False,
            guard.grant_id or False,
            guard.uncancelled,
            _documents(plan.documents, args),
            plan.drop_journal_from,
            _steps(plan.steps, args),
            plan.want == "record",
            not plan.settle,
            pack_graph(plan),
            False if guard.mail_count is None else guard.mail_count,
        ]
    return packed


def _has_rare(plan: Plan) -> bool:
    guard = plan.guard
    return bool(
        plan.timer is not None
        or plan.stamp
        or guard.version
        or plan.documents
        or plan.want != "brief"
        or not plan.settle
        or plan.graph is not None
        or plan.drop_journal_from
        or plan.steps
        or guard.suspension_id
        or guard.grant_id
        or guard.uncancelled
        or guard.mail_count is not None
    )


def _changes(changes: Mapping[str, Any], searchable: frozenset[str]) -> list[Any]:
    """Field numbers and values in turn."""
    flat: list[Any] = []
    for name, value in changes.items():
        if name == "tags":
            flat += (
                AT["tags"],
                tags_text(value),
                AT[INDEXED_TAGS],
                indexed_tags(value, searchable),
            )
            continue
        if name not in AT:
            raise ValueError(f"a plan may not set {name}: it is fixed when a record is made")
        flat += (AT[name], value)
    return flat


def pack_event(event: Event | None) -> list[Any] | bool:
    if event is None:
        return False
    return [event.kind, ",".join(event.families), _flat(event.details)]


def _attempt_change(change: EndAttempt | PauseAttempt | None) -> list[str] | bool:
    match change:
        case None:
            return False
        case EndAttempt(state, reason, category):
            return ["end", state, reason, category]
        case PauseAttempt(suspension_id):
            return ["pause", suspension_id]


def _documents(documents: Mapping[str, bytes | None], args: Args) -> list[Any] | bool:
    """Names and argument numbers in turn; 0 drops what is there."""
    flat: list[Any] = []
    for name, body in documents.items():
        flat += (name, _DROPPED if body is None else args.put(body))
    return flat or False


def _steps(steps: Sequence[JournalEntry], args: Args) -> list[Any] | bool:
    """Addresses, digests and argument numbers in turn."""
    flat: list[Any] = []
    for one in steps:
        flat += (step_address(one), one.digest, args.put(seal_step(one)))
    return flat or False


def _timer(timer: Timer | None) -> list[Any] | bool:
    """Field number, whether it counts from now, and the length or instant, in turn."""
    if timer is None:
        return False
    flat: list[Any] = []
    for name, field in _RELATIVE:
        length = getattr(timer, name)
        if length is not None:
            flat += (field, True, length)
    for name, field in _NAMED:
        instant = getattr(timer, name)
        if instant is not None:
            flat += (field, False, instant)
    return flat


def pack_graph(plan: Plan) -> Any:
    """Edges and groups a plan puts beside its record."""
    return pack_edit(plan.graph) if plan.graph is not None else False
