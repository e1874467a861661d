"""The tasks that workers register: written when a worker starts, read by people, and forgotten when
nobody has used them for long."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from flowfabric.backend.optimistic import WRITE_CONFLICT, WriteConflict, decide
from flowfabric.backend.types import ConfigDocument, ConfigPut, Worker
from flowfabric.core.declared_tasks import (
    MOST_BYTES,
    MOST_DESCRIPTION_BYTES,
    MOST_TASKS,
    REFRESHED_MS,
    Declaration,
    DeclaredTask,
    Entries,
    bare,
    differences,
    digest_of,
    document_name,
    keep_until,
    name_of,
    read_entries,
    registered,
    size_of,
    write_entries,
)
from flowfabric.core.ids import check_kind, check_lane, check_namespace, check_text, check_worker_id
from flowfabric.core.pages import Room, json_bytes
from flowfabric.core.policy import freeze
from flowfabric.core.rules.operators import clamp_priority
from flowfabric.core.schedules import document_name as schedule_name
from flowfabric.core.schedules import read_schedule
from flowfabric.core.tags import submitted_tags
from flowfabric.engine.checking import MAX_INSTANT, integer, whole
from flowfabric.engine.deps import Deps
from flowfabric.engine.task_options import DeclaredOptions
from flowfabric.engine.workers import Workers
from flowfabric.errors import FlowFabricError, InvalidInput, NotFound, ResourceExhausted
from flowfabric.operations import tasks as declared
from flowfabric.operations.declaration import implements
from flowfabric.operations.tasks import (
    NewTask,
    OtherDeclaration,
    TaskInfo,
    TaskRegistered,
    TasksRegistered,
)
from flowfabric.operations.types import Page

_MOST_LISTED: Final = 1_000
_MOST_CURSOR_BYTES: Final = 1024
# Documents may be large: this many are read at a time.
_READ_AT_ONCE: Final = 100
_BUILD_BYTES: Final = 256
_VERSION_BYTES: Final = 64
_KEY_BYTES: Final = 1024
# Counting the tasks of a namespace reads all of them.
_COUNTED_EVERY_S: Final = 60.0
_MOST_COUNTED: Final = 1_000


class Tasks:
    def __init__(self, deps: Deps, workers: Workers, options: DeclaredOptions) -> None:
        self._deps = deps
        self._backend = deps.store.backend
        self._workers = workers
        self._options = options
        # How many tasks a namespace has, and when that was counted.
        self._counts: dict[str, tuple[int, float]] = {}

    # ---- registering

    @implements(declared.Tasks.register_tasks)
    async def register_tasks(
        self,
        worker_instance_id: str,
        tasks: Sequence[NewTask],
        namespace: str = "default",
        *,
        build: str = "",
        started_at: int = 0,
    ) -> TasksRegistered:
        check_namespace(namespace)
        by = check_worker_id(worker_instance_id, "worker_instance_id")
        check_text(build, "build", _BUILD_BYTES, allow_control=False)
        now = await self._backend.now()
        # A process cannot start later than now; its clock is not asked.
        started = min(whole(started_at, "started_at") or now, now)
        facts = {"build": build, "worker_instance_id": by, "started_at": started}
        answers: list[TaskRegistered | FlowFabricError] = []
        asked: dict[str, list[_Asked]] = {}
        for at, one in enumerate(tasks):
            try:
                entry = _entry(one, facts, now)
            except FlowFabricError as fault:
                answers.append(fault)
                continue
            # Replaced when the document is written.
            answers.append(TaskRegistered())
            name = document_name(namespace, one.kind)
            asked.setdefault(name, []).append(_Asked(at, entry, _has_schema(one)))

        async def attempt() -> WriteConflict | None:
            for name, outcome in (await self._register(namespace, asked)).items():
                for one in asked.pop(name):
                    answers[one.at] = one.answer(outcome)
            return WRITE_CONFLICT if asked else None

        await decide("tasks of namespace", namespace, attempt, self._deps.chance)
        return TasksRegistered(items=answers, started_at=started)

    async def _register(
        self, namespace: str, asked: "Mapping[str, Sequence[_Asked]]"
    ) -> "dict[str, _Outcome]":
        """One read of all documents, and one put of those that differ. What each document then
        says; without those that somebody else wrote meanwhile."""
        found = await self._backend.config_get(list(asked)) if asked else []
        room = await self._room(namespace) if None in found else 0
        outcomes: dict[str, _Outcome] = {}
        puts: list[ConfigPut] = []
        for name, document in zip(asked, found, strict=True):
            before = read_entries(name, document.body) if document else ()
            after = before
            for one in asked[name]:
                after = registered(after, one.entry) or after
            outcomes[name] = after
            if after is before:
                continue
            if document is None and room <= 0:
                outcomes[name] = ResourceExhausted(
                    f"tasks: namespace {namespace} has {MOST_TASKS}; delete unused ones"
                )
                continue
            room -= document is None
            version = document.version if document else 0
            puts.append(ConfigPut(name, version, write_entries(after), keep_until(after)))
        for put, is_applied in zip(puts, await self._put(puts), strict=True):
            if not is_applied:
                del outcomes[put.name]
            elif not put.expected:
                self._counted(namespace, 1)
        return outcomes

    async def _put(self, puts: Sequence[ConfigPut]) -> list[bool]:
        answers = await self._backend.config_put(puts) if puts else []
        for put in puts:
            self._options.drop(name_of(put.name))
        return [one.applied for one in answers]

    async def _room(self, namespace: str) -> int:
        """How many more tasks a namespace may have, as counted at most a minute ago: processes that
        register at the same time may go somewhat beyond the limit."""
        number, counted_at = self._counts.get(namespace, (0, -_COUNTED_EVERY_S))
        now = time.monotonic()
        if now - counted_at >= _COUNTED_EVERY_S:
            number, after = 0, document_name(namespace, "")
            while number < MOST_TASKS:
                rows = await self._documents(namespace, after, _READ_AT_ONCE)
                number += len(rows)
                if len(rows) < _READ_AT_ONCE:
                    break
                after = rows[-1].name
            if len(self._counts) >= _MOST_COUNTED:
                self._counts.clear()
            self._counts[namespace] = number, now
        return max(0, MOST_TASKS - number)

    def _counted(self, namespace: str, more: int) -> None:
        if namespace in self._counts:
            number, at = self._counts[namespace]
            self._counts[namespace] = number + more, at

    # ---- reading

    @implements(declared.Tasks.list_tasks)
    async def list_tasks(
        self, namespace: str = "default", kind: str = "", cursor: str = "", limit: int = 50
    ) -> Page[TaskInfo]:
        check_namespace(namespace)
        whole(limit, "limit", 1, _MOST_LISTED)
        check_text(cursor, "cursor", _MOST_CURSOR_BYTES)
        live = await self._workers.live(namespace)
        if kind:
            (only,) = await self._backend.config_get([document_name(namespace, check_kind(kind))])
            return Page(items=[_info(only, live)] if only else [])
        after, room, items = document_name(namespace, cursor), Room(), list[TaskInfo]()
        while True:
            rows = await self._documents(namespace, after, _READ_AT_ONCE)
            for row in rows:
                info = _info(row, live)
                if len(items) == limit or not room.takes(json_bytes(info)):
                    return Page(items=items, next_cursor=items[-1].kind)
                items.append(info)
            if len(rows) < _READ_AT_ONCE:
                return Page(items=items)
            after = rows[-1].name

    async def _documents(self, namespace: str, after: str, limit: int) -> list[ConfigDocument]:
        return await self._backend.config_list(document_name(namespace, ""), after, limit)

    # ---- forgetting

    @implements(declared.Tasks.delete_task)
    async def delete_task(self, kind: str, namespace: str = "default") -> None:
        name = document_name(check_namespace(namespace), check_kind(kind))

        async def attempt() -> WriteConflict | None:
            (found,) = await self._backend.config_get([name])
            if found is None:
                raise NotFound(f"task {kind}")
            (done,) = await self._put([ConfigPut(name, found.version, b"")])
            return None if done else WRITE_CONFLICT

        await decide("task", kind, attempt, self._deps.chance)
        self._counted(namespace, -1)

    async def retire_due(
        self, due: Sequence[ConfigDocument], now: int
    ) -> list[bool | FlowFabricError]:
        """Forget tasks whose time is over; those that a live worker or a schedule names are kept
        for longer. Whether this call wrote it, for each."""
        named: dict[str, set[str] | FlowFabricError] = {}
        for namespace in {name_of(one.name)[0] for one in due}:
            try:
                named[namespace] = await self._named(namespace)
            except FlowFabricError as fault:
                named[namespace] = fault
        puts: list[ConfigPut] = []
        for document in due:
            namespace, kind = name_of(document.name)
            kinds = named[namespace]
            if not isinstance(kinds, FlowFabricError):
                body, due_at = (document.body, now + REFRESHED_MS) if kind in kinds else (b"", 0)
                puts.append(ConfigPut(document.name, document.version, body, due_at))
        written = iter(await self._put(puts))
        faults = (named[name_of(one.name)[0]] for one in due)
        return [one if isinstance(one, FlowFabricError) else next(written) for one in faults]

    async def _named(self, namespace: str) -> set[str]:
        """The kinds that a live worker or a schedule of the namespace names."""
        found = {kind for one in await self._workers.live(namespace) for kind in one.kinds or ()}
        prefix = after = schedule_name(namespace, "")
        while rows := await self._backend.config_list(prefix, after, _READ_AT_ONCE):
            found.update(read_schedule(row.name, row.body).kind for row in rows)
            after = rows[-1].name
        return found


# The entries of a document, or why there are none.
_Outcome = Entries | FlowFabricError


class _Asked(msgspec.Struct, frozen=True):
    """An entry to register, and its place in the request."""

    at: int
    entry: DeclaredTask
    had_schema: bool

    def answer(self, outcome: "_Outcome") -> TaskRegistered | FlowFabricError:
        if isinstance(outcome, FlowFabricError):
            return outcome
        newest, own = outcome[0], self.entry
        return TaskRegistered(
            is_newest=(newest.version, newest.digest) == (own.version, own.digest),
            schema_left_out=self.had_schema and not _has_schema(own),
        )


def _has_schema(one: NewTask | DeclaredTask) -> bool:
    return one.arguments is not None or one.result is not None


def _entry(asked: NewTask, facts: dict[str, Any], now: int) -> DeclaredTask:
    """The declaration as an entry, without its schemas if they are too large."""
    check_kind(asked.kind)
    declaration = _declaration(asked)
    try:
        digest = digest_of(declaration)
        members = msgspec.structs.asdict(declaration) | facts
        entry = DeclaredTask(**members, registered_at=now, digest=digest)
        if size_of(entry) <= MOST_BYTES:
            return entry
        entry = bare(entry)
        if size_of(entry) > MOST_BYTES:
            raise InvalidInput(f"{asked.kind!r:.80}: at most {MOST_BYTES} bytes without schemas")
    except (TypeError, ValueError, RecursionError) as fault:
        raise InvalidInput(f"{asked.kind!r:.80}: a schema is no JSON: {fault}") from fault
    return entry


def _declaration(asked: NewTask) -> Declaration:
    policy = bytes(asked.policy) if isinstance(asked.policy, msgspec.Raw) else asked.policy
    return Declaration(
        version=check_text(asked.version, "version", _VERSION_BYTES, allow_control=False),
        lane=check_lane(asked.lane),
        priority=None
        if asked.priority is None
        else clamp_priority(integer(asked.priority, "priority")),
        tags=submitted_tags(asked.tags),
        policy=freeze(policy),
        delay_ms=whole(asked.delay_ms, "delay_ms", 0, MAX_INSTANT),
        delay_until=whole(asked.delay_until, "delay_until", 0, MAX_INSTANT),
        idempotency_key=check_text(asked.idempotency_key, "idempotency_key", _KEY_BYTES),
        arguments=_schema(asked.arguments, "arguments"),
        result=_schema(asked.result, "result"),
        description=check_text(asked.description, "description", MOST_DESCRIPTION_BYTES),
    )


def _schema(schema: object, field: str) -> dict[str, Any] | None:
    if schema is not None and not isinstance(schema, dict):
        raise InvalidInput(f"{field}: expected a JSON Schema, got {type(schema).__name__}")
    return schema


def _info(document: ConfigDocument, live: Iterable[Worker]) -> TaskInfo:
    namespace, kind = name_of(document.name)
    newest, *others = read_entries(document.name, document.body)
    members: dict[str, Any] = msgspec.structs.asdict(newest)
    del members["digest"]
    members["lane_id"] = members.pop("lane")
    members["policy"] = msgspec.json.decode(newest.policy) if newest.policy else None
    instances = {one.worker_instance_id for one in live}
    return TaskInfo(
        kind=kind,
        namespace=namespace,
        workers=sum(kind in (one.kinds or ()) for one in live),
        others=tuple(_other(one, newest, instances) for one in others),
        **members,
    )


def _other(one: DeclaredTask, newest: DeclaredTask, live: set[str]) -> OtherDeclaration:
    return OtherDeclaration(
        version=one.version,
        build=one.build,
        worker_instance_id=one.worker_instance_id,
        started_at=one.started_at,
        registered_at=one.registered_at,
        differs_in=differences(one, newest),
        is_live=one.worker_instance_id in live,
    )
