"""The steps most tests of the server begin with, as a client would take them."""

from typing import Any
from uuid import uuid4

import httpx

from flowfabric.server import Http
from tests.server.recording import record

WORKER = {"worker_id": "pool", "worker_instance_id": "pool-1", "lanes": ["default"]}


class Served:
    """An application and a client of it."""

    def __init__(self, application: Http, client: httpx.AsyncClient) -> None:
        self.application = application
        self.client = client
        self.headers: dict[str, str] = {}

    async def call(self, line: str, body: Any = None, **given: Any) -> httpx.Response:
        """`METHOD /path`; a body is sent as JSON."""
        method, _, path = line.partition(" ")
        headers = {**self.headers, **given.pop("headers", {})}
        if body is not None:
            given["json"] = body
        answer = await self.client.request(method, path, headers=headers, **given)
        record(answer)
        return answer

    async def done(self, line: str, body: Any = None, **given: Any) -> Any:
        """The JSON of an answer that must be a success."""
        answer = await self.call(line, body, **given)
        assert answer.is_success, (answer.status_code, answer.text)
        return answer.json() if answer.content else None

    async def refused(self, line: str, body: Any = None, **given: Any) -> tuple[int, str]:
        """Status and kind of an answer that must be an error in the one form errors have."""
        answer = await self.call(line, body, **given)
        assert answer.is_error, (answer.status_code, answer.text)
        told = answer.json()
        assert set(told) >= {"error", "kind", "retryable"}
        return answer.status_code, told["kind"]

    async def submit(self, **changes: Any) -> str:
        body = {"lane_id": "default", "execution_kind": "greet", **changes}
        answer = await self.done("POST /v1/executions", body)
        own: str = answer["execution_id"]
        return own

    async def claim(self, **changes: Any) -> dict[str, Any]:
        answer = await self.done("POST /v1/worker/claim", {**WORKER, **changes})
        (claimed,) = answer["items"]
        return dict(claimed)

    async def held(self, **changes: Any) -> dict[str, Any]:
        """The fence of a fresh execution that is claimed."""
        await self.submit(**changes)
        return fence(await self.claim())

    async def finish(self, held: dict[str, Any], **outcome: Any) -> dict[str, Any]:
        item = {**held, "op": str(uuid4()), "outcome": outcome_of(**outcome)}
        answer = await self.done("POST /v1/worker/finish", {"items": [item]})
        (only,) = answer["items"]
        return dict(only)


def outcome_of(**outcome: Any) -> dict[str, Any]:
    """`complete={…}` as it is sent: the members and their type."""
    ((kind, members),) = outcome.items()
    return {"type": kind, **members}


def fence(claimed: dict[str, Any]) -> dict[str, Any]:
    names = ("execution_id", "lease_id", "lease_epoch", "attempt_id")
    return {name: claimed[name] for name in names}
