"""Everything a store holds, read as it lies there."""

import asyncio
from collections import defaultdict
from typing import Any, Final

import libvalkey

from flowfabric.backend.valkey.faults import code_of, fault_of
from flowfabric.backend.valkey.keys import PREFIX
from flowfabric.backend.valkey.node import Node, Topology, Word

# Per kind of key its values, by the rest of the key's name.
Dump = dict[str, dict[str, Any]]

# How kinds of keys are read: the words around the key. Of what needs no look the key is noted.
_READS: Final[dict[tuple[Word, ...], str]] = {
    ("HGETALL",): "p x d j m c cfg e el br bl qh wd",
    ("ZRANGE", 0, -1, "WITHSCORES"): "v r lq t cfgn cfgt em ba be qe qs qt wr we",
    ("GET",): "rev f b q",
    ("LRANGE", 0, -1): "h",
    ("XRANGE", "-", "+"): "s",
    (): "hq rq tq ev i fair w wn bk",
}
KINDS: Final = {kind: words for words, kinds in _READS.items() for kind in kinds.split()}
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
                kind, rest = _kind_of(key)
                if value is _OTHER:
                    found[ALIEN][key.decode()] = kind
                else:
                    found[kind][rest] = value
    return found


def _kind_of(key: bytes) -> tuple[str, str]:
    kind, _, rest = key.decode().removeprefix(PREFIX).partition(":")
    return kind, rest


async def _keys(node: Node) -> list[bytes]:
    keys: dict[bytes, None] = {}
    cursor: Word = 0
    while True:
        cursor, some = await node.command("SCAN", cursor, "MATCH", f"{PREFIX}*", "COUNT", _SCANNED)
        keys.update(dict.fromkeys(some))
        if not int(cursor):
            return list(keys)


async def _value(node: Node, key: bytes) -> Any:
    words = KINDS.get(_kind_of(key)[0])
    if not words:
        return None
    answer = await node.run(words[0], key, *words[1:])
    if isinstance(answer, libvalkey.ReplyError):
        if code_of(answer) == "WRONGTYPE":
            return _OTHER
        raise fault_of(answer)
    return answer


def scores(pairs: Any) -> dict[str, int]:
    """The members of a sorted set."""
    return {member.decode(): int(score) for member, score in pairs}


def parted(rest: str) -> tuple[str, str]:
    """The tag and the name in the rest of a key."""
    tag, _, name = rest.partition("}:")
    return f"{tag}}}", name
