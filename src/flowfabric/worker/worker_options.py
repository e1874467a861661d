"""The options of a worker, and the requests that are made of them."""

import os
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final
from uuid import uuid4

import msgspec

from flowfabric.config.processes import own_process
from flowfabric.core.ids import check_lane, check_namespace, check_worker_id
from flowfabric.errors import ConfigError, InvalidInput
from flowfabric.operations.workers import ClaimOrder, Registration
from flowfabric.worker.handlers import Middleware
from flowfabric.worker.session import OnStep

_LONGEST_TTL_MS: Final = 600_000


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    worker_id: str
    namespace: str = "default"
    lanes: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    concurrency: int = 64
    # How many to hold beyond those that run; None prefetches while work is short.
    prefetch: int | None = None
    lease_ms: int = 30_000
    drain_s: float = 30.0
    instance_id: str = ""
    # The release of the program, shown with its tasks.
    build: str = ""
    middleware: tuple[Middleware, ...] = ()
    resources: tuple[Any, ...] = ()
    # The clock, in seconds, that measures how long ago something was claimed.
    monotonic: Callable[[], float] = time.monotonic
    # Called when a step is about to run its function, which gets these arguments.
    on_step: OnStep | None = None


def checked(options: WorkerOptions) -> WorkerOptions:
    """The options with an instance id; the first one that is wrong is refused."""
    try:
        check_namespace(options.namespace)
        check_worker_id(options.worker_id)
        for lane in options.lanes:
            check_lane(lane)
    except InvalidInput as fault:
        raise ConfigError(f"worker: {fault.detail}") from fault
    for name, least in (("concurrency", 1), ("lease_ms", 1_000)):
        if getattr(options, name) < least:
            raise ConfigError(f"worker.{name}: expected {least} or more")
    if not options.lanes:
        raise ConfigError("worker.lanes: expected at least one, or a task that names one")
    own = options.instance_id or f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
    return msgspec.structs.replace(options, instance_id=own)


def registration_of(options: WorkerOptions, kinds: tuple[str, ...] | None = None) -> Registration:
    return Registration(
        worker_id=options.worker_id,
        worker_instance_id=options.instance_id,
        lanes=tuple(sorted(set(options.lanes))),
        capabilities=tuple(sorted(set(options.capabilities))),
        kinds=kinds,
        ttl_ms=min(2 * options.lease_ms, _LONGEST_TTL_MS),
        namespace=options.namespace,
        process=str(own_process() or ""),
    )


def claim_order(
    options: WorkerOptions,
    lanes: deque[str],
    n: int,
    wait_ms: int = 0,
    kinds: tuple[str, ...] | None = None,
) -> ClaimOrder:
    """The lanes take turns in being the first."""
    lanes.rotate(-1)
    return ClaimOrder(
        worker_id=options.worker_id,
        worker_instance_id=options.instance_id,
        namespace=options.namespace,
        lanes=tuple(lanes),
        capabilities=options.capabilities,
        kinds=kinds,
        n=n,
        lease_ms=options.lease_ms,
        wait_ms=wait_ms,
    )


_LEAST_ASKED: Final = 8
_MOST_ASKED: Final = 64


class ClaimSize:
    """How many executions a worker claims at once. A large claim costs even when there is little
    work, so the number grows only after a full answer."""

    def __init__(self) -> None:
        self.most = _LEAST_ASKED
        # Whether the last answer had less than was asked for.
        self.was_short = False

    def learn(self, asked: int, got: int) -> None:
        self.was_short = got < asked
        if got >= asked:
            self.most = min(_MOST_ASKED, max(self.most, 2 * got))
        elif got < self.most // 4:
            self.most = max(_LEAST_ASKED, self.most // 2)
