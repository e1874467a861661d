"""Two server processes on one store, each with its duties."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.rotation import on_stores
from tests.server.processes import client, running
from tests.server.tokens import bearer
from tests.stores import url_of

ROOT = "root-0123456789-abcdef"
Servers = tuple[httpx.AsyncClient, httpx.AsyncClient]


@pytest.fixture(params=on_stores(["sqlite"], ["postgres", "valkey"]))
async def servers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Servers]:
    variables = {
        "FF_URL": url_of(request.param, tmp_path),
        "FF_SQLITE_PATH": "",
        "FF_API_TOKEN": ROOT,
        "FF_WAITPOINT_HMAC_SECRET": "5e" * 32,
    }
    async with (
        running(tmp_path, **variables) as one,
        running(tmp_path, **variables) as other,
        client(one) as first,
        client(other) as second,
    ):
        for http in (first, second):
            http.headers.update(bearer(ROOT))
        yield first, second


async def test_a_token_counts_on_every_server_within_a_second_or_so(servers: Servers) -> None:
    one, other = servers
    made = (await one.post("/v1/tokens", json={"name": "ci", "scopes": ["read"]})).json()
    await until(other, made["token"], 200)
    listed = (await other.get("/v1/tokens")).json()["items"]
    assert [token["name"] for token in listed] == ["ci"]
    assert (await other.delete(f"/v1/tokens/{made['token_id']}")).status_code == 204
    await until(one, made["token"], 401)


async def until(http: httpx.AsyncClient, text: str, status: int) -> None:
    """Asks until it is so; ten times the promise, for a busy machine."""
    async with asyncio.timeout(10):
        while (await http.get("/v1/lanes", headers=bearer(text))).status_code != status:
            pass


async def test_duties_of_two_processes_act_once(servers: Servers) -> None:
    due = int(time.time() * 1_000) + 500
    own = set()
    for n in range(20):
        body = {"lane_id": "late", "execution_kind": "greet", "delay_until": due}
        made = await servers[n % 2].post("/v1/executions", json=body)
        assert made.status_code == 201, made.text
        own.add(made.json()["execution_id"])
    taken = await asyncio.gather(*(all_of(http, f"w{n}", due) for n, http in enumerate(servers)))
    assert sorted(taken[0] + taken[1]) == sorted(own)
    for execution_id in own:
        attempts = (await servers[0].get(f"/v1/executions/{execution_id}/attempts")).json()
        assert len(attempts["attempts"]) == 1


async def all_of(http: httpx.AsyncClient, instance: str, due: int) -> list[str]:
    """What one server hands out until nothing more comes."""
    taken: list[str] = []
    asked = {"worker_id": "pool", "worker_instance_id": instance, "lanes": ["late"], "n": 3}
    while True:
        left_ms = max(0, due - int(time.time() * 1_000))
        answer = await http.post("/v1/worker/claim", json=asked | {"wait_ms": left_ms + 2_000})
        if answer.status_code == 204:
            return taken
        taken += [one["execution_id"] for one in answer.json()["items"]]
