"""Executions over REST: from submit to result."""

import base64

from tests.server.driving import Served, fence

EVERY_BYTE = bytes(range(256))


async def test_an_execution_is_submitted_claimed_and_completed(served: Served) -> None:
    own = await served.submit(input_payload=base64.b64encode(EVERY_BYTE).decode())
    claimed = await served.claim()
    assert claimed["execution_id"] == own
    assert base64.b64decode(claimed["input"]) == EVERY_BYTE
    done = await served.finish(
        fence(claimed), complete={"result": base64.b64encode(EVERY_BYTE).decode()}
    )
    assert done == {"ok": {"state": "completed"}}
    assert (await served.call(f"GET /v1/executions/{own}/result")).content == EVERY_BYTE
    assert (await served.call(f"GET /v1/executions/{own}/input")).content == EVERY_BYTE
    assert await served.done(f"GET /v1/executions/{own}/state") == "completed"
