"""The composition root: builds a running engine from settings. No other module names stores."""

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, Literal

import msgspec

from flowfabric.backend.base import Backend
from flowfabric.backend.memory import open_memory
from flowfabric.backend.observed import observed
from flowfabric.backend.sqlite import Durability, damage_of, open_sqlite, pending_steps, repair
from flowfabric.backend.types import ConfigPut, Discrepancy
from flowfabric.config import Settings, StoreUrl
from flowfabric.core.ids import PartitionCounts
from flowfabric.core.tokens import Secret
from flowfabric.duties.loop import Duties, DutyLoop
from flowfabric.duties.retention import Retention
from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine import Engine, Limits, engine_on
from flowfabric.errors import InvalidInput, PartitionMismatch, UnsupportedStore
from flowfabric.telemetry.observer import NO_OBSERVER, CounterTotals, Observer

Clock = Callable[[], int]
_FAMILIES: Final = ("flow", "budget", "quota")


def backend_of(settings: Settings, clock: Clock | None = None) -> Backend:
    """The store the settings name; nothing is opened yet."""
    store = settings.store
    match store.scheme:
        case "memory":
            return open_memory(clock=clock, searchable=settings.searchable_tags)
        case "sqlite":
            return open_sqlite(
                store.path,
                clock=clock,
                durability=_durability(store.options.get("durability", "normal")),
                searchable=settings.searchable_tags,
                readers=settings.sqlite_readers,
            )
        case "valkey":
            return _valkey(settings, clock)
        case "http" | "https":
            raise InvalidInput("url: names a server; expected a store")
        case scheme:
            raise UnsupportedStore(
                f"{scheme}: this installation has no such store; use sqlite, valkey or memory"
            )


def _valkey(settings: Settings, clock: Clock | None) -> Backend:
    try:
        from flowfabric.backend.valkey import Demands, Login, Opening, Sentinels, open_valkey
    except ModuleNotFoundError as fault:
        raise UnsupportedStore(
            f"valkey needs the package {fault.name}: install flowfabric[valkey]"
        ) from None
    store = settings.store
    options = ("tls", "cluster", "allow_volatile", "sentinel_auth")
    switched = {name for name in options if _is_on(store, name)}
    tls, ca_file = "tls" in switched, store.options.get("tls_ca", "")
    login = Login(store.user, store.password.reveal(), tls, ca_file)
    anonymous = Login(tls=tls, ca_file=ca_file)
    sentinel_login = login if "sentinel_auth" in switched else anonymous
    sentinels = store.sentinels and Sentinels(store.sentinels, store.path, sentinel_login)
    if sentinels and "cluster" in switched:
        raise InvalidInput("cluster: sentinels monitor a single server; use valkey+cluster://")
    return open_valkey(
        sentinels or (store.host, store.port),
        login,
        Opening(
            counts=settings.counts,
            searchable=settings.searchable_tags,
            clock=clock,
            demands=Demands(settings.allow_redis, "allow_volatile" in switched),
            loads=_loads(settings),
            boot_timeout_s=settings.boot_timeout_s,
            replicated=_is_replicated(store),
        ),
        cluster="cluster" in switched,
    )


def _loads(settings: Settings) -> Literal["missing", "always", "never"]:
    if settings.force_lua_reload and settings.skip_library_load:
        raise InvalidInput("skip_library_load: contradicts force_lua_reload; choose one of them")
    if settings.force_lua_reload:
        return "always"
    return "never" if settings.skip_library_load else "missing"


def _is_replicated(store: StoreUrl) -> bool:
    match store.options.get("durability", ""):
        case "":
            return False
        case "replicated":
            return True
        case text:
            raise InvalidInput(f"durability: expected replicated or nothing, got {text!r}")


def _is_on(store: StoreUrl, name: str) -> bool:
    text = store.options.get(name, "false").lower()
    if text not in ("1", "true", "0", "false"):
        raise InvalidInput(f"{name}: expected true or false, got {text!r}")
    return text in ("1", "true")


def _durability(text: str) -> Durability:
    match text:
        case "normal" | "fsync":
            return text
        case _:
            raise InvalidInput(f"durability: expected normal or fsync, got {text!r}")


def migrations_of(settings: Settings) -> list[str]:
    """Migrations that opening the store would run; only SQLite has any."""
    store = settings.store
    return pending_steps(store.path) if store.scheme == "sqlite" else []


async def verified(
    settings: Settings, *, repairs: bool = False, deep: bool = False
) -> list[Discrepancy]:
    """Derived data that contradicts the records. `repairs` writes it again and reports the rest;
    `deep` makes SQLite check its file as well."""
    store = settings.store
    found = await _verify(settings)
    if found and repairs:
        await _repair(settings)
        found = await _verify(settings)
    if deep and store.scheme == "sqlite":
        found += [Discrepancy("file", store.path, one, "ok") for one in damage_of(store.path)]
    return found


async def _repair(settings: Settings) -> None:
    store = settings.store
    if store.scheme == "sqlite":
        repair(store.path)
        return
    opened = backend_of(settings)
    from flowfabric.backend.valkey import ValkeyBackend

    if not isinstance(opened, ValkeyBackend):
        raise InvalidInput(f"repair: {store.scheme}: this store has nothing to repair")
    try:
        await opened.prepare()
        await opened.repair()
    finally:
        await opened.close()


async def _verify(settings: Settings) -> list[Discrepancy]:
    engine = await open_engine(settings)
    try:
        return list(await engine.deps.store.backend.verify())
    finally:
        await close_engine(engine)


async def open_engine(
    settings: Settings, clock: Clock | None = None, observer: Observer = NO_OBSERVER
) -> Engine:
    """Open the store, check its partition counts against the settings, and build the engine."""
    return await engine_over(backend_of(settings, clock), settings, observer)


async def close_engine(engine: Engine) -> None:
    """End work in flight, then close the store."""
    await engine.close()
    await engine.deps.store.backend.close()


async def engine_over(
    backend: Backend, settings: Settings, observer: Observer = NO_OBSERVER
) -> Engine:
    """The engine over a store that is not open yet; the observer gets the store's errors."""
    backend = observed(backend, observer)
    try:
        await backend.prepare()
        await agree_on_partitions(backend, settings.counts)
        limits = Limits(
            stream_ops=settings.max_concurrent_stream_ops,
            waitpoint_grace_ms=settings.waitpoint_grace_ms,
            claim_poll_ms=settings.claim_poll_interval_ms,
        )
        engine = engine_on(backend, settings.counts, limits, settings.searchable_tags)
        await engine.keys.boot(settings.waitpoint_secret, generated=_generated(settings.store))
        for lane in settings.lanes:
            engine.lanes.used("default", lane)
        await engine.lanes.drain()
        observer.read_totals_from(partial(_counted, engine))
        return engine
    except BaseException:
        await backend.close()
        raise


def _counted(engine: Engine) -> CounterTotals:
    counters = engine.deps.store.backend.counters()
    return CounterTotals(
        hits=engine.admissions.hits,
        siblings=counters.siblings,
        reconnects=counters.reconnects,
        reloads=counters.reloads,
    )


def _generated(store: StoreUrl) -> Secret:
    """A signing secret for an embedded store; for a shared store it must be configured."""
    is_own = store.scheme in ("memory", "sqlite")
    return Secret(secrets.token_hex(32) if is_own else "")


async def agree_on_partitions(backend: Backend, counts: PartitionCounts) -> None:
    """Store the partition counts on first use; later ones must be equal."""
    configured = {f"num_{name}_partitions": getattr(counts, name) for name in _FAMILIES}
    put = ConfigPut("partitions", 0, msgspec.json.encode(configured))
    (answer,) = await backend.config_put([put])
    if answer.applied:
        return
    stored = _stored_counts(answer.document.body)
    for name, wanted in configured.items():
        found = stored.get(name, 0)
        if found != wanted:
            raise PartitionMismatch(
                f"{name}: stored={found}, config={wanted}; the counts of a store cannot change"
            )


async def counts_of(backend: Backend) -> PartitionCounts | None:
    """The partition counts of a store; None when there are none that can be read."""
    (found,) = await backend.config_get(["partitions"])
    stored = _stored_counts(found.body) if found else {}
    try:
        return PartitionCounts(**{name: stored[f"num_{name}_partitions"] for name in _FAMILIES})
    except KeyError:
        return None


def _stored_counts(body: bytes) -> dict[str, int]:
    """The stored counts; empty when they cannot be read."""
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def duties_of(engine: Engine, settings: Settings, observer: Observer = NO_OBSERVER) -> Duties:
    return Duties(
        [
            DutyLoop(
                TimerSweep(engine, settings.scanner_filter),
                settings.timer_sweep_interval_ms / 1000,
                observer,
            ),
            DutyLoop(
                Retention(engine, settings.scanner_filter),
                settings.retention_trimmer_interval_s,
                observer,
            ),
        ]
    )


@asynccontextmanager
async def running(settings: Settings, clock: Clock | None = None) -> AsyncIterator[Engine]:
    """An engine with its duties, for as long as the block lasts."""
    engine = await open_engine(settings, clock)
    duties = duties_of(engine, settings)
    duties.start()
    try:
        yield engine
    finally:
        await duties.stop()
        await close_engine(engine)
