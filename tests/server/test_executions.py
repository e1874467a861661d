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


async def test_input_is_json_and_options_are_those_of_the_task(served: Served) -> None:
    task = {"kind": "send", "lane_id": "mail", "priority": 7}
    body = {"worker_instance_id": "w", "tasks": [task, {"kind": ""}]}
    made = await served.done("POST /v1/worker/tasks", body)
    assert made["items"][0] == {"ok": {}}
    assert made["items"][1]["error"]["error"] == "invalid_input: kind: empty"
    (listed,) = (await served.done("GET /v1/tasks"))["items"]
    assert (listed["kind"], listed["priority"], listed["workers"]) == ("send", 7, 0)
    new = {"execution_kind": "send", "input": {"to": "ada"}}
    own = (await served.done("POST /v1/executions", new))["execution_id"]
    found = await served.done(f"GET /v1/executions/{own}")
    assert (found["lane_id"], found["priority"]) == ("mail", 7)
    assert (await served.call(f"GET /v1/executions/{own}/input")).content == b'{"to":"ada"}'
    both = await served.call("POST /v1/executions", new | {"input_payload": "e30="})
    assert both.status_code == 400
    assert "input, input_payload: expected only one of them" in both.text
    assert (await served.call("DELETE /v1/tasks/send")).status_code == 204
    assert (await served.call("DELETE /v1/tasks/send")).status_code == 404
