"""A server that is told to stop, or is killed, while busy: nothing it acknowledged is lost."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.server.processes import Process, client, running, start
from tests.valkey_server import shared_server

CALLERS = 16
ENOUGH = 100
BODY = {"lane_id": "default", "execution_kind": "greet"}
WORKER = {"worker_id": "pool", "worker_instance_id": "pool-1", "lanes": ["default"]}


def on_sqlite() -> dict[str, str]:
    return {}


def on_valkey() -> dict[str, str]:
    store = shared_server()
    store.clean()
    return {
        "FF_URL": f"valkey://127.0.0.1:{store.port}",
        "FF_SQLITE_PATH": "",
        "FF_WAITPOINT_HMAC_SECRET": "5e" * 32,
    }


ON_EACH = pytest.mark.parametrize("store", [on_sqlite, on_valkey])
Store = Callable[[], dict[str, str]]


class Load:
    """Callers that submit one after the other until they are told to go, or cut off."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.acknowledged: list[str] = []
        self.refused: list[httpx.Response] = []
        self.busy = asyncio.Event()

    async def run(self) -> None:
        await asyncio.gather(*(self._call() for _ in range(CALLERS)))

    async def _call(self) -> None:
        async with client(self._process) as http:
            while True:
                try:
                    answer = await http.post("/v1/executions", json=BODY)
                except httpx.TransportError:
                    return
                if answer.status_code != 201:
                    self.refused.append(answer)
                    return
                self.acknowledged.append(answer.json()["execution_id"])
                if len(self.acknowledged) >= ENOUGH:
                    self.busy.set()


async def all_there(process: Process, ids: list[str]) -> bool:
    async with client(process) as http:
        for own in ids:
            if (await http.get(f"/v1/executions/{own}/state")).json() != "waiting":
                return False
        return True


@ON_EACH
async def test_a_stop_under_load_answers_503_and_loses_nothing(
    store: Store, tmp_path: Path
) -> None:
    variables = store()
    process = await start(tmp_path, **variables)
    await process.ready()
    load = Load(process)
    loading = asyncio.create_task(load.run())
    await load.busy.wait()
    process.terminate()
    await loading
    assert await process.ended() == 0
    assert load.refused
    for answer in load.refused:
        assert (answer.status_code, answer.json()["kind"]) == (503, "unavailable")
        assert answer.headers["connection"] == "close"
    async with running(tmp_path, **variables) as again:
        assert await all_there(again, load.acknowledged)


@ON_EACH
async def test_a_killed_server_comes_back_by_itself(store: Store, tmp_path: Path) -> None:
    variables = store()
    process = await start(tmp_path, **variables)
    await process.ready()
    async with client(process) as http:
        await http.post("/v1/executions", json={**BODY, "lane_id": "held"})
        claim = {**WORKER, "lanes": ["held"], "lease_ms": 1_000}
        (held,) = (await http.post("/v1/worker/claim", json=claim)).json()["items"]
    load = Load(process)
    loading = asyncio.create_task(load.run())
    await load.busy.wait()
    process.process.send_signal(signal.SIGKILL)
    await loading
    assert await process.ended() == -signal.SIGKILL
    async with running(tmp_path, **variables) as again, client(again) as http:
        assert await all_there(again, load.acknowledged)
        claim = {**WORKER, "lanes": ["held"], "wait_ms": 20_000}
        (taken,) = (await http.post("/v1/worker/claim", json=claim)).json()["items"]
        assert taken["execution_id"] == held["execution_id"]
        assert taken["attempt_type"] == "reclaim"
        found = await http.get("/v1/executions/count")
        assert found.json()["counts"]["waiting"] >= len(load.acknowledged)
