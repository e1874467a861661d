"""A Valkey server or cluster as the source or target of a move.

Everything goes by plain commands, not by functions: a source is closed by taking its functions
away, through which alone processes write. They are not loaded again while the marker is there.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import libvalkey

from flowfabric.backend.moving import MARKER, PARTITIONS, Marker, Page, marker_of, taken_over
from flowfabric.backend.reference.moving import Row, Tally
from flowfabric.backend.types import Discrepancy
from flowfabric.backend.valkey.backend import ValkeyBackend
from flowfabric.backend.valkey.boot import Waits, check_servers
from flowfabric.backend.valkey.faults import fault_of
from flowfabric.backend.valkey.keys import CONFIG, FIELDS, stored_key, tag_of
from flowfabric.backend.valkey.library import NAME
from flowfabric.backend.valkey.moving.deriving import Deriving
from flowfabric.backend.valkey.moving.loading import Loading, Sending
from flowfabric.backend.valkey.moving.reading import Reading
from flowfabric.backend.valkey.node import Node
from flowfabric.backend.valkey.packing import record_from
from flowfabric.backend.valkey.verifying import verify

__all__ = ["ValkeyMovable"]

_TAG: Final = tag_of(CONFIG)
_DOCUMENTS: Final = stored_key("config", _TAG)
_NAMES: Final = stored_key("config_names", _TAG)
_REVISION: Final = stored_key("revision", _TAG)
_SCANNED: Final = 10_000
# A field of a hash in place of the one that was seen; '' is none. Sent again it finds its own.
_REPLACE: Final = """
local found = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if found == ARGV[3] then return 1 end
if found ~= ARGV[2] then return 0 end
if ARGV[3] == '' then return redis.call('HDEL', KEYS[1], ARGV[1]) end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
"""


def _stored(marker: Marker | None) -> bytes:
    return b"1 0 " + marker.body if marker is not None else b""


class ValkeyMovable:
    family = "valkey"

    def __init__(self, backend: ValkeyBackend, where: str) -> None:
        self.where = where
        self._backend = backend
        self._calls = backend.calls
        self._opening = backend.opening
        self._topology = self._calls.topology
        self._functions = self._calls.functions
        self._sending = Sending(self._functions)
        self._reading = Reading(self._topology, self._now)
        self._loading = Loading(self._calls, self._now, is_test=self._opening.clock is not None)
        self._deriving = Deriving(
            self._calls, self._sending, is_test=self._opening.clock is not None
        )

    @property
    def loaded(self) -> frozenset[Any]:
        """The tables whose rows it can take."""
        return self._loading.loaded

    async def open(self) -> None:
        await self._topology.open()
        waits = Waits(budget_s=self._opening.boot_timeout_s)
        await check_servers(self._topology, self._opening.demands, waits)

    async def close(self) -> None:
        await self._backend.close()

    async def _now(self) -> int:
        if self._opening.clock is not None:
            return self._opening.clock()
        seconds, micros = await self._topology.node_of(CONFIG).command("TIME")
        return int(seconds) * 1_000 + int(micros) // 1_000

    async def document(self, name: str) -> bytes | None:
        return await self._functions.document(name)

    async def verify(self) -> list[Discrepancy]:
        return await verify(self._calls, await self._now())

    # ---- reads

    async def leases(self) -> int:
        now, held = await self._now(), 0
        async for node, key in self._keys("ff:v:*:worker:*"):
            for member in await node.command("ZRANGE", key, 0, -1):
                name = stored_key("execution", member.decode())
                fields = FIELDS["record"], FIELDS["static"]
                row, static = await self._ask(name, "HMGET", name, *fields)
                held += row is not None and record_from(row, static).lease_until > now
        return held

    async def _keys(self, pattern: str) -> AsyncIterator[tuple[Node, bytes]]:
        for node in self._topology.primaries():
            cursor: Any = 0
            while True:
                words = ("SCAN", cursor, "MATCH", pattern, "COUNT", _SCANNED)
                cursor, found = await node.command(*words)
                for key in found:
                    yield node, key
                if not int(cursor):
                    break

    async def size(self) -> int:
        return await self._reading.size()

    async def page(self, cursor: str) -> Page:
        return await self._reading.page(cursor)

    async def tally(self) -> Tally:
        return Tally(await self._now())

    async def contents(self) -> list[str]:
        if (foreign := await self._documents()).keys() - {MARKER, PARTITIONS}:
            return [f"config ({len(foreign)})"]
        found: set[str] = set()
        cursor, is_over = "", False
        while not (found or is_over):
            page = await self.page(cursor)
            found = {row.table.name for row in page.rows if row.key not in (MARKER, PARTITIONS)}
            cursor, is_over = page.cursor, not page.cursor
        return sorted(found)

    async def _documents(self) -> dict[str, bytes]:
        fields = await self._ask(_DOCUMENTS, "HGETALL", _DOCUMENTS)
        return {name.decode(): value for name, value in fields.items()}

    # ---- writes

    async def seal(self, seen: Marker | None, marker: Marker) -> None:
        await self._replace(seen, marker)
        for node in self._topology.primaries():
            answer = await node.run("FUNCTION", "DELETE", NAME)
            if isinstance(answer, libvalkey.ReplyError) and "not found" not in str(answer):
                raise fault_of(answer, node.name)

    async def unseal(self, seen: Marker) -> None:
        await self._replace(seen, None)
        await self._functions.prepare()
        replication = self._functions.replication
        if replication is not None:
            for node in self._topology.primaries():
                await replication.confirm(node)

    async def load(self, rows: Sequence[Row], seen: Marker | None, marker: Marker) -> None:
        if rows and marker_of(await self.document(MARKER)) != seen:
            raise taken_over(self.where)
        await self._sending.send_all(await self._loading.commands(rows))
        await self._replace(seen, marker)

    async def derive(self, page: Page) -> None:
        await self._deriving.derive(page)

    async def _replace(self, seen: Marker | None, marker: Marker | None) -> None:
        """The document in one command; what follows from it is put right whenever it is put."""
        words = ("EVAL", _REPLACE, 1, _DOCUMENTS, MARKER, _stored(seen), _stored(marker))
        if not await self._ask(_DOCUMENTS, *words):
            raise taken_over(self.where)
        if marker is None:
            await self._ask(_NAMES, "ZREM", _NAMES, MARKER)
        else:
            await self._ask(_NAMES, "ZADD", _NAMES, 0, MARKER)
        await self._count_puts()

    async def _count_puts(self) -> None:
        """The revision is how often documents were put: the sum of their versions."""
        found = await self._documents()
        puts = sum(int(value.partition(b" ")[0]) for value in found.values())
        await self._ask(_REVISION, "SET", _REVISION, puts)

    async def _ask(self, key: str, *words: str | bytes | int) -> Any:
        return await self._functions.ask(key, libvalkey.pack_command(words))
