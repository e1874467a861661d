"""A process that sends many signals at once to one execution, when it is told to."""

import asyncio
import sys
from uuid import uuid4

from flowfabric.app import open_engine
from flowfabric.config import Settings, StoreUrl
from flowfabric.core.rules.signals import Accepted
from flowfabric.core.tokens import WaitpointToken
from flowfabric.engine import Engine
from flowfabric.errors import FlowFabricError, RetryExhausted
from tests.moves import SignalRequest, deliver_signal


def say(*words: str) -> None:
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


def request_to(execution_id: str, waitpoint_id: str, token: str) -> SignalRequest:
    return SignalRequest(
        execution_id=execution_id,
        waitpoint_id=waitpoint_id,
        signal_id=str(uuid4()),
        signal_name="go",
        signal_category="test",
        source_type="process",
        source_identity="one",
        waitpoint_token=WaitpointToken(token),
        payload=bytes(range(256)),
    )


async def deliver(engine: Engine, request: SignalRequest) -> tuple[str, str]:
    """The signal's id and what became of it; one that was given up is sent again."""
    while True:
        try:
            sent = await deliver_signal(engine, request)
        except RetryExhausted:
            continue
        except FlowFabricError as refusal:
            return request.signal_id, refusal.code
        effect = sent.effect if isinstance(sent, Accepted) else "duplicate"
        return request.signal_id, effect


async def main(path: str, execution_id: str, waitpoint_id: str, number: str) -> None:
    engine = await open_engine(Settings(store=StoreUrl("sqlite", path)))
    say("ready")
    token = (await asyncio.to_thread(sys.stdin.readline)).strip()
    requests = [request_to(execution_id, waitpoint_id, token) for _ in range(int(number))]
    for answer in await asyncio.gather(*(deliver(engine, one) for one in requests)):
        say(*answer)
    await engine.close()
    await engine.deps.store.backend.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
