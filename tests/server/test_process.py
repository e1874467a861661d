"""The server as a process: how it boots, refuses to boot and drains."""

import asyncio
import time
from pathlib import Path

import httpx
import pytest

from tests.server.processes import client, running, start
from tests.valkey_server import shared_server

BODY = {"lane_id": "default", "execution_kind": "greet"}
WORKER = {"worker_id": "pool", "worker_instance_id": "pool-1", "lanes": ["idle"]}


async def test_without_any_configuration_it_serves_this_host_from_a_file(tmp_path: Path) -> None:
    process = await start(tmp_path, FF_SQLITE_PATH="")
    await process.ready()
    async with client(process) as http:
        assert (await http.get("/readyz")).json() == {"status": "ready"}
        assert (await http.post("/v1/executions", json=BODY)).status_code == 201
    assert (tmp_path / "flowfabric.db").exists()
    process.terminate()
    assert await process.ended() == 0
    assert process.messages().count("no API token") == 2
    assert "opening sqlite flowfabric.db" in process.messages()
    assert "lanes default, duties timer_sweep,retention_trimmer" in process.messages()


async def test_problems_of_the_configuration_are_told_together(tmp_path: Path) -> None:
    process = await start(
        tmp_path, FF_LANES="a,a", FF_MAX_SSE_STREAMS="0", FF_ALLOW_INSECURE="perhaps"
    )
    assert await process.ended() == 1
    for name in ("FF_LANES", "FF_MAX_SSE_STREAMS", "FF_ALLOW_INSECURE"):
        assert f"invalid value for {name}: " in process.messages()


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"FF_LISTEN_ADDR": "0.0.0.0:0"}, "FF_LISTEN_ADDR"),
        ({"FF_CONFIG": "/nowhere/at/all.toml"}, "FF_CONFIG"),
        ({"FF_SQLITE_PATH": "/nowhere/at/all.db"}, "/nowhere/at/all.db"),
    ],
)
async def test_what_cannot_work_stops_the_boot(
    variables: dict[str, str], told: str, tmp_path: Path
) -> None:
    process = await start(tmp_path, **variables)
    assert await process.ended() == 1
    assert told in process.messages()
    assert "Traceback" not in process.messages()


async def test_a_database_that_does_not_answer_stops_the_boot(tmp_path: Path) -> None:
    process = await start(
        tmp_path, FF_BACKEND="postgres", FF_POSTGRES_URL="postgresql://u:secret@127.0.0.1:1/db"
    )
    assert await process.ended() == 1
    assert "postgres 127.0.0.1:1/db" in process.messages()
    assert "Traceback" not in process.messages()
    assert "secret" not in process.messages()


async def test_other_partition_counts_stop_the_boot(tmp_path: Path) -> None:
    async with running(tmp_path):
        pass
    process = await start(tmp_path, FF_FLOW_PARTITIONS="7")
    assert await process.ended() == 1
    assert "num_flow_partitions: stored=256, config=7" in process.messages()


async def test_a_port_in_use_stops_the_boot(tmp_path: Path) -> None:
    async with running(tmp_path) as first:
        other = await start(
            tmp_path,
            FF_LISTEN_ADDR=f"127.0.0.1:{first.port}",
            FF_SQLITE_PATH=str(tmp_path / "other.db"),
        )
        assert await other.ended() == 1
        assert "cannot listen" in other.messages()


async def test_another_signing_secret_is_told_and_the_stored_one_stays(tmp_path: Path) -> None:
    async with running(tmp_path, FF_WAITPOINT_HMAC_SECRET="ab" * 32):
        pass
    async with running(tmp_path, FF_WAITPOINT_HMAC_SECRET="cd" * 32) as process:
        told = [line for line in process.lines if "rotat" in str(line.get("message", ""))]
        assert any(line.get("level") == "warning" for line in told)


async def _submitted(http: httpx.AsyncClient) -> str:
    answer = await http.post("/v1/executions", json=BODY)
    own: str = answer.json()["execution_id"]
    return own


async def test_a_drain_ends_every_wait_at_once_and_finishes_the_rest(tmp_path: Path) -> None:
    async with running(tmp_path) as process, client(process) as http:
        own = await _submitted(http)
        stream = f"/v1/executions/{own}/attempts/0/stream"
        waits = [
            http.get(f"{stream}/tail?block_ms=30000"),
            http.get(f"/v1/executions/{own}/state?wait_ms=30000"),
            http.post("/v1/worker/claim", json={**WORKER, "wait_ms": 30_000}),
            http.get("/v1/events?wait_ms=30000"),
        ]
        tasks = [asyncio.create_task(one) for one in waits]
        sse = asyncio.create_task(http.get(f"{stream}/sse"))
        feed = asyncio.create_task(http.get("/v1/events", headers={"accept": "text/event-stream"}))
        await _until_told(
            http, "ff_sse_streams_open 2.0", "ff_stream_ops_in_flight 1.0", "ff_claim_waits 1.0"
        )
        started = time.monotonic()
        process.terminate()
        answers = await asyncio.gather(*tasks)
        assert [answer.status_code for answer in answers] == [503] * 4
        assert {answer.json()["kind"] for answer in answers} == {"unavailable"}
        for followed in await asyncio.gather(sse, feed):
            assert "event: error" in followed.text
            assert '"kind":"unavailable"' in followed.text
        assert await process.ended(25) == 0
        # Far less than the waits were to take.
        assert time.monotonic() - started < 25


async def _until_told(http: httpx.AsyncClient, *figures: str) -> None:
    """Wait until the server's own metrics say so."""
    async with asyncio.timeout(20):
        text = ""
        while not all(figure in text for figure in figures):
            text = (await http.get("/metrics")).text


async def test_while_draining_nobody_may_begin_to_wait(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        reader, writer = await asyncio.open_connection("127.0.0.1", process.port)
        # Half a request keeps its connection, and so the drain, waiting.
        head = b"POST /v1/executions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 43\r\n"
        writer.write(head + b"content-type: application/json\r\n\r\n{")
        await writer.drain()
        async with client(process) as http:
            assert (await http.get("/readyz")).status_code == 200
        process.terminate()
        writer.write(b'"lane_id":"default","execution_kind":"greet"}'[:42])
        answer = await asyncio.wait_for(reader.read(), 20)
        assert answer.startswith(b"HTTP/1.1 ")
        writer.close()
        assert await process.ended(20) == 0


async def test_a_claim_whose_client_has_gone_gives_its_work_to_nobody(tmp_path: Path) -> None:
    async with running(tmp_path) as process, client(process) as http:
        claim = {**WORKER, "lanes": ["default"], "wait_ms": 30_000}
        _, writer = await asyncio.open_connection("127.0.0.1", process.port)
        body = str(claim).replace("'", '"').encode()
        writer.write(
            b"POST /v1/worker/claim HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )
        await _until_told(http, "ff_claim_waits 1.0")
        writer.transport.abort()
        await _until_told(http, "ff_claim_waits 0.0")
        own = await _submitted(http)
        answer = await http.post("/v1/worker/claim", json={**claim, "wait_ms": 5_000})
        (claimed,) = answer.json()["items"]
        assert (claimed["execution_id"], claimed["attempt_index"]) == (own, 0)


async def test_settings_come_from_a_file_and_the_environment_wins(tmp_path: Path) -> None:
    file = tmp_path / "flowfabric.toml"
    file.write_text(
        'lanes = ["one", "two"]\nmax_sse_streams = 3\n[[token]]\nname = "ci"\n'
        f'sha256 = "{"0" * 64}"\nscopes = ["read"]\n'
    )
    async with running(tmp_path, FF_CONFIG=str(file), FF_LANES="three") as process:
        assert "lanes three" in process.messages()
        async with client(process) as http:
            assert (await http.get("/v1/partitions")).status_code == 401


async def test_a_server_on_valkey(tmp_path: Path) -> None:
    store = shared_server()
    store.clean()
    variables = {
        "FF_URL": f"valkey://127.0.0.1:{store.port}",
        "FF_SQLITE_PATH": "",
        "FF_WAITPOINT_HMAC_SECRET": "5e" * 32,
    }
    async with running(tmp_path, **variables) as process, client(process) as http:
        own = await _submitted(http)
        claim = {**WORKER, "lanes": ["default"]}
        (claimed,) = (await http.post("/v1/worker/claim", json=claim)).json()["items"]
        assert claimed["execution_id"] == own
        assert (await http.get("/v1/capabilities")).json()["family"] == "valkey"
