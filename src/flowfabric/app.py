"""The composition root: builds a running engine from settings. No other module names stores."""

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal, cast

import msgspec

from flowfabric.backend.base import CONFIG_TOPIC, Backend
from flowfabric.backend.memory import open_memory
from flowfabric.backend.moving import PARTITIONS, Movable, Move, MoveOrder, Progress, abandon
from flowfabric.backend.observed import observed
from flowfabric.backend.sqlite import (
    Durability,
    damage_of,
    movable_file,
    open_sqlite,
    pending_steps,
    repair,
)
from flowfabric.backend.types import CLUSTER_SLOTS, Discrepancy
from flowfabric.config import Settings
from flowfabric.config.options import (
    MOST_POOLED,
    chosen,
    is_on,
    is_replicated,
    libpq_parameters,
    number,
    schema_of,
)
from flowfabric.core.tokens import Secret
from flowfabric.duties.loop import Duties, DutyLoop
from flowfabric.duties.maintenance import HINTS_S, Hints, Retention
from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine import Engine, Limits, engine_on
from flowfabric.engine.executions.submit import Create
from flowfabric.engine.partitions import agree_on_partitions, counts_in
from flowfabric.errors import InvalidInput, UnsupportedStore
from flowfabric.telemetry.observer import NO_OBSERVER, CounterTotals, Observer

if TYPE_CHECKING:
    from flowfabric.backend.postgres import CallersConnection, PostgresBackend
    from flowfabric.backend.postgres import Opening as PostgresOpening
    from flowfabric.backend.valkey import ValkeyBackend

Clock = Callable[[], int]


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
                readers=number(store, "pool_size", settings.sqlite_readers + 1, 2, MOST_POOLED) - 1,
            )
        case "postgres":
            opening = _postgres(settings, clock)
            from flowfabric.backend.postgres import open_postgres

            return open_postgres(opening)
        case "valkey":
            return _valkey(settings, clock)
        case "http" | "https":
            raise InvalidInput("url: names a server; expected a store")
        case scheme:
            raise UnsupportedStore(
                f"{scheme}: this installation has no such store;"
                " use sqlite, postgres, valkey or memory"
            )


def _postgres(settings: Settings, clock: Clock | None = None) -> "PostgresOpening":
    try:
        from flowfabric.backend.postgres import Opening, Target
    except ModuleNotFoundError as fault:
        raise _without(fault) from None
    store = settings.store
    is_pooled = chosen(store, "pooler", "session", "transaction") == "transaction"
    # To listen needs a session.
    notify = chosen(store, "notify", *(("off",) if is_pooled else ("on", "off")))
    return Opening(
        target=Target(
            libpq_parameters(store),
            schema=schema_of(store),
            is_pooled=is_pooled,
            connect_s=number(store, "connect_timeout_ms", 3_000, 100, 60_000) / 1_000,
            statement_ms=number(store, "request_timeout_ms", 5_000, 1_000, 10_000),
        ),
        clock=clock,
        searchable=settings.searchable_tags,
        pool_size=number(store, "pool_size", settings.postgres_pool_size, 2, MOST_POOLED),
        migrates=settings.auto_migrate,
        notifies=notify == "on",
    )


def _without(fault: ModuleNotFoundError) -> UnsupportedStore:
    return UnsupportedStore(
        f"postgres needs the package {fault.name}: install flowfabric[postgres]"
    )


def _valkey(settings: Settings, clock: Clock | None) -> "ValkeyBackend":
    try:
        from flowfabric.backend.valkey import Demands, Login, Opening, Sentinels, open_valkey
    except ModuleNotFoundError as fault:
        raise UnsupportedStore(
            f"valkey needs the package {fault.name}: install flowfabric[valkey]"
        ) from None
    store = settings.store
    options = ("tls", "cluster", "allow_volatile", "sentinel_auth")
    switched = {name for name in options if is_on(store, name)}
    tls, ca_file = "tls" in switched, store.options.get("tls_ca", "")
    connect_s = number(store, "connect_timeout_ms", 10_000, 100, 60_000) / 1_000
    request_s = number(store, "request_timeout_ms", 5_000, 1_000, 600_000) / 1_000
    anonymous = Login(tls=tls, ca_file=ca_file, connect_s=connect_s, request_s=request_s)
    login = msgspec.structs.replace(anonymous, user=store.user, password=store.password.reveal())
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
            replicated=is_replicated(store),
            retry_s=number(store, "retry_ms", 10_000, 0, 60_000) / 1_000,
            request_s=request_s,
        ),
        cluster="cluster" in switched,
    )


def _loads(settings: Settings) -> Literal["missing", "always", "never"]:
    if settings.force_lua_reload and settings.skip_library_load:
        raise InvalidInput("skip_library_load: contradicts force_lua_reload; choose one of them")
    if settings.force_lua_reload:
        return "always"
    return "never" if settings.skip_library_load else "missing"


def _durability(text: str) -> Durability:
    match text:
        case "normal" | "fsync":
            return text
        case _:
            raise InvalidInput(f"durability: expected normal or fsync, got {text!r}")


def migrations_of(settings: Settings) -> list[str]:
    """Migrations that opening the store would run; Valkey and memory have none."""
    store = settings.store
    if store.scheme == "postgres":
        opening = _postgres(settings)
        from flowfabric.backend.postgres import pending_migrations

        return pending_migrations(opening)
    return pending_steps(store.path) if store.scheme == "sqlite" else []


async def migrate_store(settings: Settings) -> None:
    """Bring the layout of a store to this release."""
    backend = backend_of(msgspec.structs.replace(settings, auto_migrate=True))
    try:
        await backend.prepare()
        await agree_on_partitions(backend, settings.counts)
    finally:
        await backend.close()


def database_findings(settings: Settings) -> list[tuple[str, str]]:
    """What is wrong with a database server, each with what to do about it; only Postgres has a
    server whose settings matter here."""
    if settings.store.scheme != "postgres":
        return []
    opening = _postgres(settings)
    from flowfabric.backend.postgres import examined

    return examined(opening)


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
    if store.scheme == "postgres":
        opening = _postgres(settings)
        from flowfabric.backend.postgres import repair_database

        repair_database(opening)
        return
    opened = _valkey(settings, None)
    try:
        await opened.prepare()
        await opened.repair()
    finally:
        await opened.close()


async def _verify(settings: Settings) -> list[Discrepancy]:
    """Without an engine, which the source of a move refuses."""
    async with _opened(movable_of(settings, is_new=False)) as store:
        return await store.verify()


def movable_of(settings: Settings, clock: Clock | None = None, *, is_new: bool) -> Movable:
    """A store as the source of a move, or as its target, which may be new."""
    store = settings.store
    match store.scheme:
        case "sqlite":
            return movable_file(store.path, settings.searchable_tags, clock, is_new=is_new)
        case "postgres":
            opening = _postgres(settings, clock)
            from flowfabric.backend.postgres import PostgresMovable

            return PostgresMovable(opening, is_new=is_new)
        case "valkey":
            opened = _valkey(settings, clock)
            from flowfabric.backend.valkey import ValkeyMovable

            return ValkeyMovable(opened, store.where)
        case scheme:
            raise InvalidInput(f"{scheme}: only sqlite, postgres and valkey keep a deployment")


async def move(
    stores: tuple[Settings, Settings], order: MoveOrder, report: Callable[[Progress], None]
) -> None:
    """Move a deployment from the first store to the second."""
    source, target = stores
    async with _opened(movable_of(source, is_new=False)) as ours:
        stored = await ours.document(PARTITIONS)
        counts = counts_in(stored or b"") or target.counts
        target = msgspec.structs.replace(target, counts=counts)
        theirs = movable_of(target, is_new=True)
        work = Move(ours, theirs, report)
        async with _opened(theirs):
            await work.run(order)


async def abandon_move(source: Settings) -> None:
    """Let the source of an unfinished move be used again."""
    async with _opened(movable_of(source, is_new=False)) as ours:
        await abandon(ours)


@asynccontextmanager
async def _opened(store: Movable) -> AsyncIterator[Movable]:
    try:
        await store.open()
        yield store
    finally:
        await store.close()


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
            payload_bytes=settings.max_payload_bytes,
        )
        engine = engine_on(
            backend, settings.counts, limits, settings.searchable_tags, settings.store_keys
        )
        await engine.keys.boot(settings.waitpoint_secret, generated=_generated(settings))
        await engine.deps.secret.get()
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
        log_lag_s=counters.log_lag_s,
    )


def _generated(settings: Settings) -> Secret:
    """A signing secret for an embedded store or for development; otherwise the secret of a shared
    store must be configured."""
    is_own = settings.store.scheme in ("memory", "sqlite")
    return Secret(secrets.token_hex(32) if is_own or settings.generates_secret else "")


def callers_connection(connection: object) -> "CallersConnection":
    """A connection on which the caller has begun a transaction; nothing is sent."""
    try:
        from flowfabric.backend.postgres import CallersConnection
    except ModuleNotFoundError as fault:
        raise _without(fault) from None
    return CallersConnection(connection)


def creator_on(engine: Engine, connection: "CallersConnection") -> Create:
    """Creates executions in the transaction that is open on a connection of the caller's."""
    backend = engine.deps.store.backend
    if not backend.describe().transactional_submit:
        family = backend.describe().family
        raise UnsupportedStore(f"{family} has no transactions of callers; use postgres")
    return partial(cast("PostgresBackend", backend).create_on, connection)


def duties_of(
    engine: Engine, settings: Settings, observer: Observer = NO_OBSERVER, *more: DutyLoop
) -> Duties:
    """The duties of every process that has a store, and `more` that only this one has."""
    only, sweep_s = settings.scanner_filter, settings.timer_sweep_interval_ms / 1000
    # A schedule that was changed may be due.
    changed = engine.deps.store.backend.notifier().subscribe(CONFIG_TOPIC)
    loops = [
        DutyLoop(TimerSweep(engine, only), sweep_s, observer, changed),
        DutyLoop(
            Retention(engine, only, settings.log_limits),
            settings.retention_trimmer_interval_s,
            observer,
        ),
    ]
    if engine.deps.store.backend.describe().spread == CLUSTER_SLOTS:
        loops.append(DutyLoop(Hints(engine), HINTS_S, observer))
    return Duties([*loops, *more])


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
