"""Registering tasks: what a worker that starts says of them, for programs that submit by name."""

import asyncio
import inspect
import logging
import random
import time
from typing import Any, Final

from flowfabric.core.declared_tasks import MOST_DESCRIPTION_BYTES
from flowfabric.errors import FlowFabricError
from flowfabric.operations.tasks import NewTask
from flowfabric.worker.calls import WorkerCalls
from flowfabric.worker.children import BoundCall
from flowfabric.worker.handlers import Handlers, TaskHandler
from flowfabric.worker.schemas import arguments_schema, result_schema
from flowfabric.worker.session import BACKOFF
from flowfabric.worker.worker_options import WorkerOptions

_log = logging.getLogger("flowfabric.worker")

_WARN_EVERY_S: Final = 30.0


class Declarations:
    """The tasks of a worker, each registered once. Nothing depends on it but submits by name, so a
    worker works on without."""

    def __init__(self, calls: WorkerCalls, handlers: Handlers, options: WorkerOptions) -> None:
        self._calls = calls
        self._handlers = handlers
        self._options = options
        self._registered: set[str] = set()
        # By the store's clock, when the first of them was registered.
        self._started_at = 0
        self._warned_at = -_WARN_EVERY_S

    async def run(self) -> None:
        """Try until nothing is left to do."""
        failures = 0
        while not await self.attempt():
            failures += 1
            await asyncio.sleep(BACKOFF.pause_s(failures, random.random()))

    async def attempt(self) -> bool:
        """Whether all are registered, or refused; otherwise another attempt may help."""
        try:
            await self._register()
        except FlowFabricError as fault:
            now = time.monotonic()
            if not fault.retryable or now - self._warned_at >= _WARN_EVERY_S:
                self._warned_at = now
                _log.warning("the tasks are not registered: %s", fault)
            return not fault.retryable
        return True

    async def _register(self) -> None:
        left = [one for one in self._handlers.tasks if one.kind not in self._registered]
        tasks = [_declared(one, one.template()) for one in left if one.template is not None]
        if not tasks:
            return
        done = await self._calls.register_tasks(
            self._options.instance_id,
            tasks,
            self._options.namespace,
            build=self._options.build,
            started_at=self._started_at,
        )
        self._started_at = self._started_at or done.started_at
        self._registered.update(one.kind for one in tasks)
        for task, answer in zip(tasks, done.items, strict=True):
            if isinstance(answer, FlowFabricError):
                _log.warning("task %s is not registered: %s", task.kind, answer)
            elif answer.schema_left_out:
                _log.warning("task %s is registered without its schemas: too large", task.kind)


def _declared(handler: TaskHandler, template: BoundCall[Any]) -> NewTask:
    asked = template.submission
    text = (inspect.getdoc(handler.function) or "").encode()[:MOST_DESCRIPTION_BYTES]
    return NewTask(
        kind=asked.kind,
        lane=asked.lane,
        priority=asked.priority,
        tags=asked.tags,
        policy=asked.policy,
        delay_ms=template.delay_ms,
        delay_until=asked.delay_until or 0,
        idempotency_key=asked.idempotency_key,
        arguments=arguments_schema(handler.signature),
        result=result_schema(handler.signature),
        description=text.decode(errors="ignore"),
    )
