"""Which tests run: each on every complete store, and on a rotating one within ROTATIONS days."""

from collections import Counter
from datetime import date, timedelta

import pytest

from tests.rotation import ROTATIONS, part_of, rotation_of

CASES = 40
SUITE = f"""
import pytest
from tests.rotation import on_stores

@pytest.fixture(params=on_stores(["whole"], ["turning"]))
def store(request):
    return request.param

@pytest.mark.parametrize("case", range({CASES}))
def test_one(store, case):
    pass

def test_without_a_store():
    pass
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("FF_TEST_STORES", raising=False)
    pytester.makepyfile(SUITE)
    return pytester


def collect(project: pytest.Pytester, *words: str) -> pytest.RunResult:
    plain = ("tests.rotation", "no:randomly", "no:cacheprovider", "no:asyncio", "no:xdist")
    plugins = [word for name in plain for word in ("-p", name)]
    return project.runpytest_inprocess(*plugins, "--collect-only", *words)


def ran(project: pytest.Pytester, *words: str) -> list[str]:
    """The ids of the tests of a run."""
    return [line for line in collect(project, "-q", *words).outlines if "::" in line]


def of_store(tests: list[str], store: str) -> list[str]:
    return [one for one in tests if f"[{store}-" in one]


def test_the_rotations_together_run_every_test_once(project: pytest.Pytester) -> None:
    every = ran(project, "--rotation=all")
    runs = [ran(project, f"--rotation={number}") for number in range(ROTATIONS)]
    turning = [of_store(tests, "turning") for tests in runs]
    assert Counter(one for tests in turning for one in tests) == Counter(of_store(every, "turning"))
    assert len(of_store(every, "turning")) == CASES
    assert all(len(tests) < CASES // 2 for tests in turning)
    for tests in runs:
        assert len(of_store(tests, "whole")) == CASES
        assert any("without_a_store" in one for one in tests)


def test_successive_days_reach_every_rotation() -> None:
    days = [date(2026, 12, 28) + timedelta(days=n) for n in range(ROTATIONS)]
    assert sorted(map(rotation_of, days)) == [str(number) for number in range(ROTATIONS)]


def test_every_rotation_takes_about_its_share() -> None:
    sizes = Counter(part_of(f"tests/sdk/test_runs.py::test_case[{n}]") for n in range(800))
    assert sorted(sizes) == list(range(ROTATIONS))
    assert max(sizes.values()) < 2 * 800 / ROTATIONS


def test_a_test_that_is_named_by_its_id_runs_on_any_day(project: pytest.Pytester) -> None:
    every = of_store(ran(project, "--rotation=all"), "turning")
    assert ran(project, *every) == every


def test_named_stores_are_complete_and_alone(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FF_TEST_STORES", "turning")
    tests = ran(project)
    assert len(of_store(tests, "turning")) == CASES
    assert of_store(tests, "whole") == []


def test_the_header_shows_how_to_repeat_a_run(project: pytest.Pytester) -> None:
    shown = collect(project, "--rotation=3").stdout
    shown.fnmatch_lines(["rotation: 3 of 0 to 7; repeat: make test ARGS=--rotation=3"])
