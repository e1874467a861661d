"""The bench itself: its suites on Valkey run, and its judgement of slow functions can fail."""

from pathlib import Path

import msgspec
import pytest

from bench import valkey
from bench.__main__ import STORES
from bench.report import Options
from bench.valkey.baseline import swiftness
from bench.valkey.rig import rig

TINY = Options(cycles=100, rounds=1, fill=300, seconds=0.3)


@pytest.mark.parametrize("suite", valkey.__all__)
async def test_a_suite_on_valkey_measures_both_sides(suite: str, tmp_path: Path) -> None:
    report = await STORES["valkey"][suite](TINY)
    report.save(tmp_path / "found.json")
    found = msgspec.json.decode((tmp_path / "found.json").read_bytes())
    assert found["machine"]["mem_allocator"]
    assert all(one["cpu_us"] > 0 and one["server_us"] > 0 for one in found["measures"])
    assert any(one["wanted"] for one in found["ratios"])
    assert all(one.name in report.table() for one in report.measures)


async def test_a_function_of_ours_that_holds_the_server_fails_the_bench() -> None:
    async with rig() as on, on.engine():
        assert all(ratio.holds for ratio in await swiftness(on))
        await on.run("CONFIG", "SET", "slowlog-log-slower-than", 0)
        await on.run("FCALL", "nothing", 1, "key", "x")
        await on.run("FCALL_RO", "ff1_version", 0)
        found = await swiftness(on, most_ms=0)
    assert [(one.name, one.value, one.holds) for one in found[:1]] == [
        ("calls of ours that held the server for more than 0 ms", 1, False)
    ]
    assert found[1].name == "ff1_version: longest, ms"
