"""Everything a store holds, read as it lies there."""

import asyncio
from collections import defaultdict
from typing import Any, Final

import libvalkey

from flowfabric.backend.valkey.faults import code_of, fault_of
from flowfabric.backend.valkey.keys import PREFIX
from flowfabric.backend.valkey.node import Node, Word
from flowfabric.backend.valkey.topology import Topology

# Per kind of key its values, by the rest of the key's name.
Dump = dict[str, dict[str, Any]]

_HASH: Final = ("HGETALL",)
_ZSET: Final = ("ZRANGE", 0, -1, "WITHSCORES")
_STRING: Final = ("GET",)
# How each kind is read: the words around the key. Of what needs no look only the key is noted.
KINDS: Final[dict[str, tuple[Word, ...]]] = {
    "p": _HASH,
    "x": _HASH,
    "d": _HASH,
    "h": ("LRANGE", 0, -1),
    "j": _HASH,
    "m": _HASH,
    "s": ("XRANGE", "-", "+"),
    "v": _ZSET,
    "c": _HASH,
    "r": _ZSET,
    "rs": ("SMEMBERS",),
    "t": _ZSET,
    # of a cluster's hints
    "hq": (),
    "rq": (),
    "tq": (),
    "cfg": _HASH,
    "cfgn": _ZSET,
    "cfgt": _ZSET,
    "rev": _STRING,
    "ev": (),
    "i": (),
    "fair": (),
    "w": (),
    "wn": (),
    "f": _STRING,
    "e": _HASH,
    "el": _HASH,
    "em": _ZSET,
    # limits
    "b": _STRING,
    "ba": _ZSET,
    "be": _ZSET,
    "bh": _HASH,
    "bk": (),
    "bl": _HASH,
    "q": _STRING,
    "qe": _ZSET,
    "qh": _HASH,
    "qs": _ZSET,
    "qt": _ZSET,
    "wr": _ZSET,
    "wd": _HASH,
    "we": _ZSET,
}
# Keys that hold another kind of value than ours do, with the kind they are named after.
ALIEN: Final = "of another kind"
_OTHER: Final = object()
_SCANNED: Final = 10_000
_AT_ONCE: Final = 1_000


async def dump(topology: Topology) -> Dump:
    found: Dump = defaultdict(dict)
    for node in topology.primaries():
        keys = await _keys(node)
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            values = await asyncio.gather(*(_value(node, key) for key in some))
            for key, value in zip(some, values, strict=True):
                kind, rest = _parted(key)
                if value is _OTHER:
                    found[ALIEN][key.decode()] = kind
                else:
                    found[kind][rest] = value
    return found


def _parted(key: bytes) -> tuple[str, str]:
    kind, _, rest = key.decode().removeprefix(PREFIX).partition(":")
    return kind, rest


async def _keys(node: Node) -> list[bytes]:
    keys: dict[bytes, None] = {}
    cursor: Word = 0
    while True:
        cursor, some = await run(node, "SCAN", cursor, "MATCH", f"{PREFIX}*", "COUNT", _SCANNED)
        keys.update(dict.fromkeys(some))
        if not int(cursor):
            return list(keys)


async def _value(node: Node, key: bytes) -> Any:
    words = KINDS.get(_parted(key)[0])
    if not words:
        return None
    answer = await node.run(words[0], key, *words[1:])
    if isinstance(answer, libvalkey.ReplyError):
        if code_of(answer) == "WRONGTYPE":
            return _OTHER
        raise fault_of(answer)
    return answer


async def run(node: Node, *words: Word) -> Any:
    answer = await node.run(*words)
    if isinstance(answer, libvalkey.ReplyError):
        raise fault_of(answer)
    return answer


def scores(pairs: Any) -> dict[str, int]:
    """The members of a sorted set."""
    return {member.decode(): int(score) for member, score in pairs}
