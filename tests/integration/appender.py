"""A process that appends to an attempt whose lease it was handed, when it is told to."""

import asyncio
import sys
import time

from flowfabric.app import open_engine
from flowfabric.config import Settings, StoreUrl
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.operations.streams import Frame


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def main(path: str, *fence: str) -> None:
    execution_id, lease_id, epoch, attempt_id = fence
    held = LeaseProof(execution_id, lease_id, int(epoch), attempt_id)
    engine = await open_engine(Settings(store=StoreUrl("sqlite", path)))
    say("ready")
    while line := await asyncio.to_thread(sys.stdin.readline):
        # The monotonic clock is one for all processes of a machine.
        began = time.monotonic_ns()
        if line.strip() == "complete":
            await engine.outcomes.complete(held, b"done")
        else:
            payload = line.strip().encode()
            await engine.streams.append(held, 0, [Frame(frame_type="stdout", payload=payload)])
        say("done", began)
    await engine.close()
    await engine.deps.store.backend.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
