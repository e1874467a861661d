"""Submits by name: what they leave out is what the task declares."""

from typing import Any, Final

import msgspec

from flowfabric.core.declared_policy import completed_policy
from flowfabric.core.declared_tasks import DeclaredTask, document_name, read_entries
from flowfabric.core.ids import check_kind, check_namespace
from flowfabric.core.json_schema import JsonSchema
from flowfabric.core.policy import decode_policy
from flowfabric.engine.checking import JSON
from flowfabric.engine.config_cache import ConfigCache
from flowfabric.engine.deps import Deps
from flowfabric.errors import InvalidInput
from flowfabric.operations.executions import Submission

Name = tuple[str, str]
DEFAULT_LANE: Final = "default"
_JSON: Final = ("", JSON)


class TaskOptions(msgspec.Struct, frozen=True):
    """What a submit by name takes from the newest declaration of its kind. `policy` has the
    priority and the instant of the delay as well."""

    lane: str
    tags: dict[str, str]
    policy: str
    delay_ms: int
    idempotency_key: str
    arguments: JsonSchema | None


_UNKNOWN = TaskOptions(DEFAULT_LANE, {}, "", 0, "", None)


class DeclaredOptions:
    def __init__(self, deps: Deps) -> None:
        self._backend = deps.store.backend
        self._cache = ConfigCache[Name, TaskOptions](self._backend, "reading a task", self._read)

    async def complete(self, asked: Submission, *, checks: bool = True) -> Submission:
        """The submission with all options stated. With `checks`, arguments that the task cannot
        take are refused."""
        name = asked.namespace, asked.kind
        known = _UNKNOWN if asked.typed else self._cache.known(name)
        if known is None:
            known = await self._look_up(name)
        if known is _UNKNOWN:
            is_complete = asked.lane != ""
            return asked if is_complete else msgspec.structs.replace(asked, lane=DEFAULT_LANE)
        if checks and known.arguments is not None and asked.payload_encoding in _JSON:
            _check_arguments(known.arguments, asked.input)
        policy = bytes(asked.policy) if isinstance(asked.policy, msgspec.Raw) else asked.policy
        changes: dict[str, Any] = {"policy": completed_policy(policy, known.policy) or None}
        if asked.lane == "":
            changes["lane"] = known.lane
        if asked.tags is None and known.tags:
            changes["tags"] = known.tags
        if known.idempotency_key and not asked.idempotency_key and not asked.flow_id:
            changes["idempotency_key"] = known.idempotency_key
        if known.delay_ms and asked.delay_until is None:
            given = decode_policy(policy).delay_until
            now = await self._backend.now() if given is None else 0
            changes["delay_until"] = now + known.delay_ms if given is None else given
        return msgspec.structs.replace(asked, **changes)

    async def _look_up(self, name: Name) -> TaskOptions:
        try:
            check_namespace(name[0])
            check_kind(name[1])
        except InvalidInput:
            # The checks of the submission report it, in their order.
            return _UNKNOWN
        return await self._cache.soon(name)

    async def _read(self, name: Name) -> TaskOptions:
        document = document_name(*name)
        (found,) = await self._backend.config_get([document])
        return _UNKNOWN if found is None else _options(read_entries(document, found.body)[0])

    def drop(self, name: Name) -> None:
        """Read the task again: this process has changed it."""
        self._cache.drop(name)

    async def close(self) -> None:
        await self._cache.close()


def _options(task: DeclaredTask) -> TaskOptions:
    stated: dict[str, Any] = {}
    if task.priority is not None:
        stated["priority"] = task.priority
    if task.delay_until:
        stated["delay_until"] = task.delay_until
    return TaskOptions(
        lane=task.lane,
        tags=task.tags,
        policy=completed_policy(stated, task.policy),
        delay_ms=task.delay_ms,
        idempotency_key=task.idempotency_key,
        arguments=_schema_of(task),
    )


def _schema_of(task: DeclaredTask) -> JsonSchema | None:
    if task.arguments is None:
        return None
    return JsonSchema(task.arguments, len(msgspec.json.encode(task.arguments)))


def _check_arguments(schema: JsonSchema, given: object) -> None:
    if not isinstance(given, bytes):
        # The check of the payload reports it.
        return
    try:
        # Without a payload the task is called without arguments.
        arguments = msgspec.json.decode(given or b"{}")
    except (ValueError, RecursionError) as fault:
        raise InvalidInput(f"input: expected JSON: {fault}") from None
    fault_found = schema.fault_of(arguments, len(given))
    if fault_found is not None:
        raise InvalidInput(str(fault_found))
