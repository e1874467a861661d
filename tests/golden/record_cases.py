"""Vectors about single records: how they begin, change, are claimed, told of, listed and purged."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from flowfabric.backend.valkey.creation import pack_shape
from flowfabric.backend.valkey.graph_rows import pack_flow
from flowfabric.backend.valkey.keys import INDEX_PARTITION, OF_PARTITIONS, partition_key, tag_of
from flowfabric.backend.valkey.layout import AT, PLAIN
from flowfabric.backend.valkey.packing import (
    Args,
    attempt_of,
    pack_event,
    pack_plan,
    record_of,
    static_text,
)
from flowfabric.backend.valkey.verifying.places import _name, _score
from flowfabric.core import (
    events,
    lease,
    new_execution,
    record,
    retention,
    states,
    transition,
    views,
)
from flowfabric.core.queues import takes
from flowfabric.core.record import Record
from flowfabric.core.rules import operators
from tests.golden.case import FEW, MANY, SOME, Case, Counted, read_log, row
from tests.golden.inputs import NOW, Inputs
from tests.stores import SEARCHABLE

_replace = msgspec.structs.replace


# ---- records


def _reader(like: Record) -> Callable[[Any], Record]:
    static = static_text(like.execution_id, like).encode()
    return lambda values: record_of(values, static)


def _shown(one: Record) -> Record:
    """A log shows only the tags that are searched by."""
    return _replace(one, tags={name: one.tags[name] for name in one.tags if name in SEARCHABLE})


def _initial_record(draw: Inputs) -> Case:
    one, last = draw.new_execution(), draw.one((0, NOW - 5_000, NOW - 400, NOW, NOW + 3_000))
    given = last if one.record.fairness_key else 0
    like = _replace(one.record, execution_id=one.execution_id)
    return Case(
        "initial_record",
        [one.execution_id, pack_shape(one, SEARCHABLE), given],
        lambda: new_execution.initial_record(one, NOW, new_execution.rank_shift_of(given, NOW)),
        _reader(like),
    )


def _known_execution(draw: Inputs) -> Case:
    one = draw.new_execution()
    one = _replace(one, record=_replace(one.record, idempotency_key="key"))
    later = draw.one((NOW, NOW, NOW + 1, NOW + 4_999, NOW + 5_000, NOW + 9_000))
    tag = one.execution_id.partition(":00")[0]

    def expect() -> list[str]:
        scope, key = new_execution.scoped_key(one.record)
        known = new_execution.known_execution(new_execution.new_entry(one, NOW), later)
        return [f"ff:i:{tag}:{scope}:{key}", known]

    given = [tag, row(one.record), "key", one.execution_id, one.dedup_window_ms, later]
    return Case("known_execution", given, expect)


def _guard_holds(draw: Inputs) -> Case:
    one = draw.record()
    plan = draw.plan(one)
    packed = pack_plan(plan, Args(), SEARCHABLE)
    return Case(
        "guard_holds", [packed, row(one)], lambda: transition.guard_holds(plan.guard, one, NOW)
    )


def _transition(draw: Inputs) -> Case:
    one = draw.record()
    plan = draw.plan(one)
    read = _reader(one)

    def expect() -> tuple[Record, Any]:
        done = transition.transition(one, plan, NOW)
        return done.after, done.ended

    return Case(
        "transition",
        [pack_plan(plan, Args(), SEARCHABLE), row(one)],
        expect,
        lambda answer: (read(answer[0]), attempt_of(answer[1]) if answer[1] else None),
    )


def _step_of_a_fresh_attempt(draw: Inputs) -> Case:
    """The attempt of a record that was claimed just now is told by the record alone."""
    one = _leased(draw.record("waiting", flow_id=""), draw)
    plan = draw.plan(one)
    # Only a release takes the attempt away.
    plan = _replace(plan, set={name: plan.set[name] for name in plan.set if name != "attempt_id"})
    packed, read = row(one), _reader(one)
    packed[AT["attempt"] - 1] = PLAIN

    def expect() -> tuple[Record, Any]:
        done = transition.transition(one, plan, NOW)
        return done.after, done.ended

    return Case(
        "transition",
        [pack_plan(plan, Args(), SEARCHABLE), packed],
        expect,
        lambda answer: (read(answer[0]), attempt_of(answer[1]) if answer[1] else None),
    )


def _leased(one: Record, draw: Inputs) -> Record:
    attempt = record.Attempt(
        index=2,
        attempt_id="one",
        type="retry",
        started_at=NOW - 9,
        lease_id="two",
        lease_epoch=4,
        worker_id="pool",
        worker_instance_id="pool-1",
    )
    return _replace(
        one,
        state=draw.one(("active", "active", "lost")),
        attempt=attempt,
        attempt_index=2,
        attempt_id="one",
        attempt_type="retry",
        lease_id="two",
        lease_epoch=4,
        lease_acquired_at=NOW - 9,
        worker_id="pool",
        worker_instance_id="pool-1",
    )


def _is_move(draw: Inputs) -> Case:
    rule = draw.one(sorted(states.MOVES))
    source, target = draw.one(sorted(states.STATES)), draw.one(sorted(states.STATES))
    return Case("is_move", [rule, source, target], lambda: states.is_move(rule, source, target))


def _entry_of(draw: Inputs) -> Case:
    holder, event = draw.record(), draw.event()
    one = _shown(_replace(draw.record(), execution_id=holder.execution_id))

    def expect() -> tuple[list[Any], int]:
        entry = events.entry_of(event, holder, one, NOW)
        return [entry] if entry else [], int(bool(entry and events.is_kept(entry)))

    given = [pack_event(event), one.execution_id, row(holder), row(one)]
    return Case("entry_of", given, expect, lambda answer: (read_log(answer[0]), answer[1]))


def _is_ending(draw: Inputs) -> Case:
    reason = draw.one(
        (*sorted(events.ENDINGS), "", "paused", "expired:", "expired:late", "expired")
    )
    return Case("is_ending", [reason], lambda: events.is_ending(reason))


_INDEX_TAG: Final = tag_of(partition_key(INDEX_PARTITION))


def _places(one: Record | None) -> dict[str, dict[str, int]]:
    """The sorted sets a record stands in, with its score in each."""
    found: dict[str, dict[str, int]] = {}
    if one is None:
        return found
    queued = one.state == "waiting" and views.is_offered(one)
    for entry in (*views.entries(one), *views.tag_entries(one, SEARCHABLE)):
        if entry.view != "by_state" or not queued:
            own = one.execution_id[: one.execution_id.index("}") + 1]
            tag = own if entry.view in OF_PARTITIONS else _INDEX_TAG
            found[f"ff:v:{tag}:{_name(entry)}"] = {one.execution_id: _score(entry)}
    return found


def _moved(before: dict[str, dict[str, int]], changes: Any) -> dict[str, dict[str, int]]:
    """The sets after what Lua has changed: first those who left, then those who came."""
    after = {key: dict(members) for key, members in before.items()}
    for key, gone, came in changes:
        own = after.setdefault(key, {})
        for member in gone:
            del own[member]
        own.update(zip(came[1::2], came[::2], strict=True))
    return {key: members for key, members in after.items() if members}


def _reindex(draw: Inputs) -> Case:
    before = draw.record()
    # What a record never changes.
    fixed = ("execution_id", "namespace", "lane", "created_at", "flow_id")
    after: Record | None = _replace(
        draw.record(), **{name: getattr(before, name) for name in fixed}
    )
    kind = draw.one(("move", "move", "new", "purge"))
    first = None if kind == "new" else before
    last = None if kind == "purge" else after

    def expect() -> tuple[Any, dict[str, int]]:
        counts: dict[str, int] = {}
        for one, by in ((first, -1), (last, 1)):
            if one is not None:
                bucket = views.bucket_of(one)
                counts[bucket] = counts.get(bucket, 0) + by
        return _places(last), {bucket: by for bucket, by in counts.items() if by}

    def read(answer: Any) -> tuple[Any, dict[str, int]]:
        return _moved(_places(first), answer[0]), {name: by for name, by in answer[1] if by}

    rows = [row(one) if one else False for one in (first, last)]
    return Case("reindex", [before.execution_id, *rows], expect, read)


def _lease(draw: Inputs) -> Case:
    one, terms = draw.record("waiting", "lost", flow_id=""), draw.lease_terms()
    if one.state == "lost":
        one = _replace(one, next="reclaim")
    if one.next == "first":
        one = _replace(one, previous_attempt=record.NO_ATTEMPT)
    read = _reader(one)

    def expect() -> tuple[Any, ...]:
        done = lease.lease(one, terms, NOW)
        entry = _replace(done.entry, tags=_shown(one).tags) if done.entry else None
        return done.after, done.ended, [entry]

    def shown(answer: Any) -> tuple[Any, ...]:
        ended = attempt_of(answer[1]) if answer[1] else None
        return read(answer[0]), ended, read_log(answer[2])

    given = [one.execution_id, row(one), list(msgspec.structs.astuple(terms))]
    return Case("lease", given, expect, shown)


def _grant(draw: Inputs) -> Case:
    one, terms = draw.record("waiting", "lost"), draw.grant_terms()
    given = [one.execution_id, row(one), terms.worker_id, terms.worker_instance_id]
    return Case(
        "grant",
        [*given, terms.grant_id, terms.grant_for],
        lambda: transition.transition(one, operators.grant(one, terms), NOW).after,
        _reader(one),
    )


def _is_exhausted(draw: Inputs) -> Case:
    one = draw.record("lost", "waiting")
    return Case("is_exhausted", [row(one)], lambda: lease.is_exhausted(one))


def _takes(draw: Inputs) -> Case:
    some = ("-", "gpu", "k1", "k2", "")
    queue = draw.one(("-", "gpu", "-.", "-.k1", "gpu.k1", "gpu.k2.v1", "-.k2.v1", "-.gpu"))
    sets = frozenset({draw.one(some), draw.one(some)})
    kinds = frozenset({draw.one(some[2:]), draw.one(some[2:4])}) if draw.chance(0.7) else None
    given = [queue, ",".join(sorted(sets - {""})), kinds is not None and ",".join(sorted(kinds))]
    return Case("takes", given, lambda: takes(queue, sets - {""}, kinds and kinds - {""}))


def _grant_kind(draw: Inputs) -> Case:
    one = draw.record("lost", "waiting")
    return Case("grant_kind", [row(one)], lambda: lease.grant_kind(one))


def _paused(draw: Inputs) -> Case:
    one = _replace(draw.record("waiting"), next=draw.one(("resume", "resume", "first")))
    return Case("paused_by_suspension", [row(one)], lambda: lease.paused_by_suspension(one))


def _may_lease(draw: Inputs) -> Case:
    one = draw.record("waiting", "lost", "active")
    grant_id = draw.one(("", one.grant_id, "one"))
    worker = draw.one(((one.grant_worker, one.grant_instance), ("pool", "pool")))
    return Case(
        "may_lease",
        [row(one), grant_id, *worker],
        lambda: lease.may_lease(one, NOW, grant_id, worker),
    )


def _put_off(draw: Inputs) -> Case:
    one = draw.record(*sorted(states.FINAL))
    given = [one.execution_id, row(one)]
    return Case("put_off", given, lambda: retention.put_off(one, NOW), _reader(one))


def _judge_purge(draw: Inputs) -> Case:
    flow = draw.flow() if draw.chance(0.5) else None
    one = _replace(
        draw.record(), flow_id=flow.flow_id if flow else "", attempt_count=0, gated=False
    )
    # No other record is there: a child is its own parent, or its parent is gone.
    parent_id = draw.one(("", one.execution_id, f"{one.execution_id}0"))
    rounds = {"parent_round": draw.one((0, 1, 2)), "kept_round": draw.one((0, 1, 2))}
    one = _replace(one, parent_id=parent_id, **rounds)
    parent = one if parent_id == one.execution_id else None
    tag = one.execution_id[: one.execution_id.index("}") + 1]
    packed = [flow.flow_id, pack_flow(flow, SEARCHABLE)] if flow else ["", False]
    return Case(
        "judge_purge",
        [one.execution_id, row(one), tag, *packed],
        lambda: retention.judge_purge(
            one, flow, NOW, is_forgotten=retention.is_forgotten(one, parent)
        ),
    )


MAKES: Final[tuple[Counted, ...]] = (
    (_initial_record, SOME),
    (_known_execution, FEW),
    (_guard_holds, SOME),
    (_transition, MANY),
    (_step_of_a_fresh_attempt, SOME),
    (_is_move, MANY),
    (_entry_of, SOME),
    (_is_ending, FEW),
    (_reindex, SOME),
    (_lease, SOME),
    (_grant, FEW),
    (_is_exhausted, FEW),
    (_takes, SOME),
    (_grant_kind, FEW),
    (_paused, FEW),
    (_may_lease, SOME),
    (_put_off, FEW),
    (_judge_purge, SOME),
)
