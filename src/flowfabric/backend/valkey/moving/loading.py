"""The commands that write rows. Each command may be sent twice."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import libvalkey
from msgspec.structs import astuple

from flowfabric.backend.reference import limit_tables, tables
from flowfabric.backend.reference.moving import Row
from flowfabric.backend.valkey.calls import Calls
from flowfabric.backend.valkey.envelopes import seal_frame, seal_step
from flowfabric.backend.valkey.functions import Functions
from flowfabric.backend.valkey.graph_rows import pack_edge, pack_flow, pack_group
from flowfabric.backend.valkey.keys import CONFIG, FIELDS, partition_tag, stored_key, tag_of
from flowfabric.backend.valkey.layout import ATTEMPT, METER
from flowfabric.backend.valkey.limit_packing import budget_row, places_in, quota_row
from flowfabric.backend.valkey.packing import encode, pack_entry, row_of, static_text
from flowfabric.backend.valkey.streams import MODES
from flowfabric.core.ids import partition_of
from flowfabric.core.limits.gates import BUDGET

# A command whose second word is its key.
Command = tuple[str | bytes | int, ...]
# For so long a test's clock may stand still while the clock of the server runs.
_TEST_LIFE_MS: Final = 3_600_000
_AT_ONCE: Final = 500
# Writes a list from an index on. What stands there is deleted first, so a repeat is harmless.
_LIST_FROM: Final = """
if ARGV[1] == '0' then redis.call('DEL', KEYS[1]) end
redis.call('LTRIM', KEYS[1], 0, ARGV[1] - 1)
for i = 2, #ARGV do redis.call('RPUSH', KEYS[1], ARGV[i]) end
"""
# Writes the entries of a stream that are missing: id, version, body, then the next entry.
_ENTRIES: Final = """
for i = 1, #ARGV, 3 do
  if #redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i]) == 0 then
    if ARGV[i + 1] == '0' then
      redis.call('XADD', KEYS[1], ARGV[i], 'f', ARGV[i + 2])
    else
      redis.call('XADD', KEYS[1], ARGV[i], 'f', ARGV[i + 2], 'v', ARGV[i + 1])
    end
  end
end
"""


class Sending:
    """Sends each command to the server that has its key."""

    def __init__(self, functions: Functions) -> None:
        self._functions = functions

    async def send_all(self, commands: Iterable[Command]) -> None:
        every = list(commands)
        for start in range(0, len(every), _AT_ONCE):
            await asyncio.gather(*map(self.send, every[start : start + _AT_ONCE]))

    async def send(self, command: Command) -> Any:
        key = command[3] if command[0] == "EVAL" else command[1]
        return await self._functions.ask(str(key), libvalkey.pack_command(command))


class Loading:
    def __init__(self, calls: Calls, now: Callable[[], Awaitable[int]], *, is_test: bool) -> None:
        self._counts = calls.counts
        self._searchable = calls.searchable
        self._limits = places_in(calls.counts)
        self._now = now
        self._is_test = is_test
        self._writers: dict[Any, Callable[[Any, Any], Iterator[Command]]] = {
            tables.CONFIG: self._config,
            tables.FLOWS: self._flow,
            tables.RECORDS: self._record,
            tables.BLOBS: self._blob,
            tables.DOCUMENTS: self._document,
            tables.ATTEMPTS: self._attempt,
            tables.STREAMS: self._stream,
            tables.SUMMARIES: self._summary,
            tables.NUMBERS: self._number,
            tables.JOURNAL: self._step,
            tables.EDGES: self._edge,
            tables.GROUPS: self._group,
            tables.FAIRNESS: self._fairness,
            limit_tables.BUDGETS: self._budget,
            limit_tables.LEDGERS: self._ledger,
            limit_tables.RESERVATIONS: self._reservation,
            limit_tables.GATES: self._gate,
            limit_tables.SLOTS: self._slot,
            limit_tables.ENTRIES: self._entry,
            limit_tables.WAITERS: self._waiter,
        }
        self._together: dict[Any, Callable[[Sequence[Row], int], Iterator[Command]]] = {
            tables.KEPT: self._kept,
            tables.FRAMES: self._frames,
            tables.KEYS: self._keys,
            limit_tables.MARKS: self._marks,
        }

    @property
    def loaded(self) -> frozenset[Any]:
        """The tables whose rows it writes."""
        return frozenset((*self._writers, *self._together))

    async def commands(self, rows: Iterable[Row]) -> list[Command]:
        now = await self._now()
        found: list[Command] = []
        together: defaultdict[Any, list[Row]] = defaultdict(list)
        for row in rows:
            if row.table in self._together:
                together[row.table].append(row)
            else:
                found += self._writers[row.table](row.key, row.value)
        for table, own in together.items():
            found += self._together[table](own, now)
        return found

    # ---- executions

    def _record(self, execution_id: str, record: Any) -> Iterator[Command]:
        row, static = encode(row_of(record, self._searchable)), static_text(execution_id, record)
        key = stored_key("execution", execution_id)
        yield "HSET", key, FIELDS["record"], row, FIELDS["static"], static
        for budget_id in record.budget_ids:
            yield "ZADD", self._of_budget("attached", budget_id, budget_id), 0, execution_id

    def _blob(self, key: Any, body: bytes) -> Iterator[Command]:
        yield "HSET", stored_key("execution", key[0]), FIELDS[key[1]], body

    def _document(self, key: Any, document: Any) -> Iterator[Command]:
        stored = b"%d %d %s" % (document.first_at, document.last_at, document.body)
        yield "HSET", stored_key("documents", key[0]), key[1], stored

    def _attempt(self, key: Any, attempt: Any) -> Iterator[Command]:
        row = encode([getattr(attempt, name) for name in ATTEMPT])
        yield "HSET", stored_key("execution", key[0]), f"{FIELDS['attempt']}{key[1]}", row

    def _kept(self, rows: Sequence[Row], _: int) -> Iterator[Command]:
        """The entries that a page has of one owner are consecutive."""
        entries: dict[str, list[tuple[int, bytes]]] = {}
        for _table, (owner, place), entry in rows:
            entries.setdefault(owner, []).append((place, encode(pack_entry(entry))))
        for owner, own in entries.items():
            own.sort()
            bodies = [body for _, body in own]
            yield "EVAL", _LIST_FROM, 1, stored_key("history", owner), own[0][0], *bodies

    def _step(self, key: Any, row: Any) -> Iterator[Command]:
        owner, name, seq = key
        address, digest = f"a{seq}:{name}", f"{row.number} {row.entry.digest}"
        own = stored_key("journal", owner)
        yield "HSET", own, address, digest, str(row.number), seal_step(row.entry)

    # ---- streams

    def _stream(self, key: Any, meta: Any) -> Iterator[Command]:
        known = {mode: meta.retained.get(mode, 0) for mode in MODES}
        row = [known[name] if name in known else int(getattr(meta, name)) for name in METER]
        yield "HSET", _meter(key), "m", encode(row)

    def _summary(self, key: Any, one: Any) -> Iterator[Command]:
        fields = ("d", one.document, "k", one.patch_kind, "u", one.last_updated_ms)
        yield "HSET", _meter(key), *fields

    def _number(self, key: Any, one: Any) -> Iterator[Command]:
        yield "HSET", _meter(key), f"n{key[2]}", f"{one.number} {one.ms}-{one.seq}"

    def _frames(self, rows: Sequence[Row], _: int) -> Iterator[Command]:
        entries: dict[str, list[tuple[int, int, Any]]] = {}
        for _table, (owner, attempt, ms, seq), frame in rows:
            name = f"{owner}:{attempt}:{MODES.index(frame.mode) + 1}"
            entries.setdefault(name, []).append((ms, seq, frame))
        for name, own in entries.items():
            own.sort(key=lambda one: one[:2])
            flat = [
                part
                for ms, seq, frame in own
                for part in (f"{ms}-{seq}", frame.summary_version, seal_frame(frame))
            ]
            yield "EVAL", _ENTRIES, 1, stored_key("frames", name), *flat

    # ---- flows

    def _tag_of_flow(self, flow_id: str) -> str:
        return partition_tag(self._counts.of_flow(flow_id))

    def _flow(self, flow_id: str, flow: Any) -> Iterator[Command]:
        body = encode(pack_flow(flow, self._searchable))
        yield "SET", stored_key("flow", self._tag_of_flow(flow_id), flow_id), body

    def _edge(self, key: Any, edge: Any) -> Iterator[Command]:
        own = stored_key("edges", self._tag_of_flow(key[0]), key[0])
        yield "HSET", own, key[1], encode(pack_edge(edge)[1])

    def _group(self, target: str, group: Any) -> Iterator[Command]:
        yield "HSET", stored_key("execution", target), FIELDS["group"], encode(pack_group(group)[1])

    # ---- keys and config

    def _life(self, until: int, now: int) -> int:
        return until - now + (_TEST_LIFE_MS if self._is_test else 0)

    def _keys(self, rows: Sequence[Row], now: int) -> Iterator[Command]:
        for _, (scope, key), entry in rows:
            tag = partition_tag(partition_of(entry.execution_id))
            name = stored_key("idempotency", tag, f"{scope}:{key}")
            value = f"{entry.expires_at} {entry.execution_id}"
            yield "SET", name, value, "PX", max(1, self._life(entry.expires_at, now))

    def _fairness(self, key: Any, last: int) -> Iterator[Command]:
        part, namespace, lane, name = key
        yield "HSET", stored_key("fairness", partition_tag(part), namespace), f"{lane},{name}", last

    def _config(self, name: str, document: Any) -> Iterator[Command]:
        tag = tag_of(CONFIG)
        stored = b"%d %d %s" % (document.version, document.due_at, document.body)
        yield "HSET", stored_key("config", tag), name, stored
        if document.body:
            yield "ZADD", stored_key("config_names", tag), 0, name
        if document.due_at:
            yield "ZADD", stored_key("config_timers", tag), document.due_at, name

    # ---- limits

    def _of_budget(self, kind: str, budget_id: str, name: str) -> str:
        return stored_key(kind, self._limits.budget(budget_id), name)

    def _budget(self, budget_id: str, budget: Any) -> Iterator[Command]:
        yield "SET", self._of_budget("budget", budget_id, budget_id), encode(budget_row(budget))
        if budget.due_at:
            tag = self._limits.budget(budget_id)
            yield "ZADD", stored_key("view", tag, "budget_timers"), budget.due_at, budget_id
            hints = stored_key("timer_hints", tag_of(CONFIG))
            yield "ZADD", hints, "LT", budget.due_at, tag

    def _ledger(self, key: Any, ledger: Any) -> Iterator[Command]:
        shares = encode([astuple(share) for share in ledger.shares])
        yield "HSET", self._of_budget("ledgers", key[1], key[0]), key[1], shares

    def _reservation(self, key: Any, own: Any) -> Iterator[Command]:
        budget_id, name = key
        stored = encode(astuple(own))
        yield "HSET", self._of_budget("reservations", budget_id, budget_id), name, stored
        ends = self._of_budget("reservation_ends", budget_id, own.root_id)
        yield "ZADD", ends, own.until, budget_id + name

    def _marks(self, rows: Sequence[Row], now: int) -> Iterator[Command]:
        for _, (budget_id, key), until in rows:
            name = self._of_budget("spend_keys", budget_id, f"{budget_id}:{key}")
            yield "SET", name, until, "PX", max(1, self._life(until, now))

    def _gate(self, name: str, gate: Any) -> Iterator[Command]:
        tag = self._limits.gate(name)
        if gate.quota is not None:
            yield "SET", stored_key("quota", tag, name), encode(quota_row(gate.quota))
        if gate.ends_at:
            yield "ZADD", stored_key("gate_ends", tag), gate.ends_at, name

    def _slot(self, key: Any, slot: Any) -> Iterator[Command]:
        yield from self._held_in_gate("slots", key, slot.until, slot.holder)

    def _entry(self, key: Any, entry: Any) -> Iterator[Command]:
        yield from self._held_in_gate("entries", key, entry.at, entry.holder)

    def _held_in_gate(self, kind: str, key: Any, at: int, holder: str) -> Iterator[Command]:
        gate, execution_id = key
        tag = self._limits.gate(gate)
        yield "ZADD", stored_key(kind, tag, gate), at, execution_id
        yield "HSET", stored_key("holders", tag, gate), f"{kind[0]}{execution_id}", holder

    def _waiter(self, key: Any, waiter: Any) -> Iterator[Command]:
        limit, execution_id = key
        is_budget = limit.startswith(BUDGET)
        places = self._limits
        tag = places.budget(limit.removeprefix(BUDGET)) if is_budget else places.gate(limit)
        row = [int(one) if isinstance(one, bool) else one for one in astuple(waiter)]
        yield "HSET", stored_key("waiters", tag, limit), execution_id, encode(row)
        yield "ZADD", stored_key("waiter_ranks", tag, limit), waiter.rank, execution_id
        member = f"{execution_id} {limit}"
        yield "ZADD", stored_key("waiter_ends", tag), waiter.until, member


def _meter(key: Any) -> str:
    return stored_key("meter", f"{key[0]}:{key[1]}")
