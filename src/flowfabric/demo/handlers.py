"""What the demo's workers can do, by execution kind."""

import asyncio
from collections.abc import Awaitable, Callable

from flowfabric.engine.claims import Claimed

Handler = Callable[[Claimed], Awaitable[bytes]]


async def greet(task: Claimed) -> bytes:
    return b"hello, " + (task.input or b"stranger")


async def stumble_twice(task: Claimed) -> bytes:
    """Fails on its first two attempts, as a flaky service would."""
    if task.record.retry_count < 2:
        raise ConnectionError(f"service unreachable (try {task.record.retry_count + 1})")
    return b"third time lucky"


async def break_for_good(task: Claimed) -> bytes:
    raise ValueError("this input can never work")


async def take_long(task: Claimed) -> bytes:
    """Long enough to be killed in the middle; quick when a second worker takes over."""
    if task.record.attempt_index == 0:
        await asyncio.sleep(60)
    return f"finished by {task.record.worker_instance_id}".encode()


async def never_end(task: Claimed) -> bytes:
    await asyncio.sleep(60)
    return b""


HANDLERS: dict[str, Handler] = {
    "greet": greet,
    "flaky": stumble_twice,
    "broken": break_for_good,
    "survivor": take_long,
    "endless": never_end,
}
