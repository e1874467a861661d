"""Whatever is wrong with what a server holds is found, and named."""

import pytest

from flowfabric.backend.base import Backend
from flowfabric.core.journal import JournalEntry
from tests.conformance.driver import Driver
from tests.conformance.graphs import chain
from tests.conformance.streaming import append, frame, live, patch
from tests.valkey_server import ValkeyServer, array_of

ID = "{fp:9}:0b0b0b0b-0b0b-4b0b-8b0b-0b0b0b0b0b0b"


@pytest.fixture
async def filled(driver: Driver) -> Driver:
    """One execution of a bit of everything, and another that waits."""
    await driver.submit(execution_id=ID, tags={"app.team": "red"}, lane="any")
    held = (await driver.take(ID)).proof
    await append(driver, held, frame(b"a", seq=1), live(b"b"), patch(b"{}"))
    await driver.engine.journals.append(held, [JournalEntry("step", 0, "d", b"x")])
    await driver.submit()
    backend = driver.engine.deps.store.backend
    assert await backend.verify() == []
    return driver


@pytest.mark.parametrize(
    ("damage", "kinds"),
    [
        (("ZREM", "ff:v:{fp:0}:all", ID), {"view"}),
        (("ZADD", "ff:v:{fp:0}:timers", "1", ID), {"view"}),
        (("ZADD", "ff:v:{fp:0}:final", "1", ID), {"view"}),
        (("ZADD", "ff:v:{fp:3}:partition", "0", ID), {"view"}),
        (("ZREM", "ff:v:{fp:0}:by_state:active:default:any", ID), {"view"}),
        (("DEL", "ff:v:{fp:0}:tag:default:8:app.team:red"), {"view"}),
        (("HINCRBY", "ff:c:{fp:0}:default", "any,active", "1"), {"count"}),
        (("DEL", "ff:lq:{fp:0}:default:default"), {"queue"}),
        (("ZADD", "ff:lq:{fp:0}:default:default", "1", "-.other"), {"queue"}),
        (("DEL", "ff:t:{cfg}"), {"timer hint"}),
        (("SET", "ff:zz:{fp:9}", "1"), {"key"}),
        (("HSET", f"ff:x:{ID}", "zz", "1"), {"field"}),
        (("HSET", "ff:p:{fp:9}", "zz", "1"), {"field"}),
        (("HSET", "ff:d:{fp:9}:" + "0" * 36, "wp/1", "1 1 x"), {"document"}),
        (("RPUSH", f"ff:h:{ID}", "\x01"), {"h"}),
        (("DEL", f"ff:m:{ID}:0"), {"frames"}),
        (("XTRIM", f"ff:s:{ID}:0:1", "MAXLEN", "0"), {"retained"}),
        (("HDEL", f"ff:m:{ID}:0", "d"), {"summary"}),
        (("HDEL", f"ff:j:{ID}", "a0:step"), {"journal address"}),
        (("HSET", f"ff:j:{ID}", "a9:other", "9 d"), {"journal address"}),
        (("INCR", "ff:rev:{cfg}"), {"config_revision"}),
        (("DEL", "ff:cfgn:{cfg}"), {"config order"}),
    ],
)
async def test_damage_is_found(
    filled: Driver, server: ValkeyServer, damage: tuple[str, ...], kinds: set[str]
) -> None:
    server.run(*damage)
    found = await filled.engine.deps.store.backend.verify()
    assert {one.kind for one in found} == kinds


async def test_what_belongs_to_nobody_is_found(filled: Driver, server: ValkeyServer) -> None:
    server.run("DEL", f"ff:x:{ID}")
    found = await filled.engine.deps.store.backend.verify()
    kinds = {one.kind for one in found if one.found == "no owner"}
    assert kinds == {"frame", "frame_number", "journal", "stream", "summary"}


async def test_a_record_that_cannot_be_read_is_named(filled: Driver, server: ValkeyServer) -> None:
    server.run("HSET", f"ff:x:{ID}", "r", "\x01")
    found = await filled.engine.deps.store.backend.verify()
    (unreadable,) = [one for one in found if one.found.startswith("unreadable")]
    assert (unreadable.kind, unreadable.subject) == ("x", ID)


# ---- repairing


DERIVED = ("v", "c", "r", "rs", "t", "el")


def derived_keys(server: ValkeyServer) -> list[str]:
    keys = array_of(server.run("KEYS", "ff:*"))
    return sorted(key for key in keys if key.split(":")[1] in DERIVED)


@pytest.mark.parametrize("damage", ["gone", "of another kind", "strange members"])
async def test_whatever_is_derived_is_written_once_more(
    filled: Driver, server: ValkeyServer, damage: str
) -> None:
    await filled.graph(chain("a", "b"))
    backend = filled.engine.deps.store.backend
    before = {key: await whole(backend, key) for key in derived_keys(server)}
    assert len(before) > len(DERIVED)
    for key in before:
        if damage != "strange members":
            server.run("DEL", key)
        if damage == "of another kind":
            server.run("LPUSH", key, "x")
        if damage == "strange members" and b"zset" in server.run("TYPE", key):
            server.run("ZADD", key, "-1", "stranger")
        elif damage == "strange members" and b"hash" in server.run("TYPE", key):
            server.run("HSET", key, "strange,waiting", "7")
    assert await backend.verify() != []
    await backend.repair()  # type: ignore[attr-defined]
    assert await backend.verify() == []
    views = [key for key in before if key.split(":")[1] not in ("r", "t")]
    assert {key: await whole(backend, key) for key in views} == {key: before[key] for key in views}


async def whole(backend: Backend, key: str) -> object:
    """What a key holds, in no order of its own."""
    (node,) = backend._topology.primaries()  # type: ignore[attr-defined]
    reading = {b"zset": ("ZRANGE", key, 0, -1, "WITHSCORES"), b"hash": ("HGETALL", key)}
    kind = await node.run("TYPE", key)
    return sorted(map(str, await node.run(*reading.get(kind, ("SMEMBERS", key)))))
