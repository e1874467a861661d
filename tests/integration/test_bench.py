"""The bench itself: its suites on servers run, and what goes wrong in them is told."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import uvloop

from bench import valkey
from bench.__main__ import STORES
from bench.hot_paths import HOT_PATHS, Place
from bench.http import get, server
from bench.peers.driving import Load, row_of
from bench.peers.known import OURS, Peer
from bench.peers.table import progress, save, table
from bench.postgres import executions
from bench.python_instructions import line
from bench.report import Options
from bench.valkey import baseline, flows
from bench.valkey import rig as rigs
from bench.valkey.baseline import swiftness
from bench.valkey.rig import rig

TINY = Options(cycles=100, rounds=1, fill=300, seconds=0.3)
PROBE = """#!lua name=probe
server.register_function('ff1_probe', function() return 1 end)"""

FEW_FILLINGS = 20


@pytest.fixture(autouse=True)
def _measures_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes out is the bench's own question; here it only has to be asked."""
    monkeypatch.setattr(flows, "LARGE", 400)
    monkeypatch.setattr(executions, "WAITING", 300)
    monkeypatch.setattr(rigs, "FILLINGS", FEW_FILLINGS)
    monkeypatch.setattr(baseline, "FILLINGS", FEW_FILLINGS)


@pytest.mark.parametrize("suite", valkey.__all__)
async def test_a_suite_on_valkey_measures_both_sides(suite: str, tmp_path: Path) -> None:
    report = await STORES["valkey"][suite](TINY)
    report.save(tmp_path / "found.json")
    found = msgspec.json.decode((tmp_path / "found.json").read_bytes())
    assert found["machine"]["mem_allocator"]
    assert all(one["cpu_us"] > 0 and one["server_us"] > 0 for one in found["measures"])
    assert any(one["wanted"] for one in found["ratios"])
    assert all(one.name in report.table() for one in report.measures)


async def test_the_suite_on_postgres_measures_both_sides() -> None:
    report = await STORES["postgres"]["executions"](TINY)
    *ours, crowded = report.measures
    assert all(one.cpu_us > 0 for one in report.measures)
    assert [one.server_us > 0 for one in ours] == [False, True, True, True, True]
    assert "others waiting" in crowded.name
    assert len(report.ratios) == 6


@pytest.mark.parametrize("name", HOT_PATHS)
async def test_a_hot_path_does_what_is_counted(name: str) -> None:
    async with asyncio.timeout(60), HOT_PATHS[name].open(Place("memory")) as work:
        for number in (1, 2):
            if work.prepare is not None:
                await work.prepare(number)
            await work.do(number)


def test_a_path_that_takes_more_than_before_is_marked() -> None:
    assert "above" in line("memory", "renew", counted=106, before=100)
    assert "above" not in line("memory", "renew", counted=104, before=100)


async def test_a_function_of_ours_that_holds_the_server_fails_the_bench() -> None:
    async with rig() as on:
        await on.run("FUNCTION", "LOAD", PROBE)
        await on.run("CONFIG", "SET", "slowlog-log-slower-than", 0)
        for function in ("ff1_probe", "nothing"):
            await on.run("FCALL", function, 1, "key", "x")
        counted, named, noise, _ = await swiftness(on, most_ms=0)
        await on.run("FCALL", "ff1_probe", 1, "key", "x")
        (forgiven, *_) = await swiftness(on, most_ms=60_000)
    assert (counted.value, counted.holds) == (1, False)
    assert (named.name, named.holds) == ("ff1_probe: longest, ms", False)
    assert (noise.value, noise.holds) == (FEW_FILLINGS, True)
    assert (forgiven.value, forgiven.holds) == (0, True)


async def test_our_worker_drains_beside_peers_and_one_that_cannot_run_says_so(
    tmp_path: Path,
) -> None:
    missing = Peer(name="nobody", stores_results=False, note="does not exist")
    async with rig() as on:
        rows = [await row_of(on, peer, Load(200, 60)) for peer in (OURS, missing)]
    ours, other = rows
    assert not ours.fault
    assert ours.drained > 0
    assert ours.server_us > 0
    assert ours.shortfall == ""
    assert "No module named bench.peers.programs.on_nobody" in other.fault
    assert "DID NOT RUN HERE" in table(rows, {})
    save(rows, {}, tmp_path / "peers.json")
    found = msgspec.json.decode((tmp_path / "peers.json").read_bytes())
    assert [row["peer"] for row in found["rows"]] == ["flowfabric", "nobody"]


async def test_one_whose_time_is_up_tells_how_far_it_came() -> None:
    async with rig() as on:
        row = await row_of(on, OURS, Load(5_000, 0.001))
    assert "submitted 1,000 of 5,000 within" in row.shortfall
    assert row.shortfall in progress(row)
    assert f"{row.shortfall}; {OURS.note}" in table([row], {})


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_requests_are_made_on_either_loop(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def ask() -> tuple[int, bytes]:
        async with server("memory://") as running:
            connection = await running.connect()
            answer = await connection.request(get("/v1/partitions"))
            connection.close()
            return answer

    with asyncio.Runner(loop_factory=loop) as runner:
        status, body = runner.run(ask())
    assert (status, msgspec.json.decode(body)["num_flow_partitions"]) == (200, 256)
