"""Fixtures shared by all suites."""

import sys
from collections.abc import Generator, Iterator
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

from flowfabric.backend.valkey import connection, node
from tests import postgres_plans
from tests.clock import VirtualClock
from tests.server import recording

pytest_plugins = ["pytester", "tests.no_skips", "tests.rotation"]

settings.register_profile(
    "quick",
    # The same examples on every run: a failure here is a change, not luck. `make model` explores.
    derandomize=True,
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile(
    "long",
    max_examples=1_000,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("quick")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


# Suites that compare stores: a server that a busy machine keeps waiting must not look frozen there.
_COMPARING: Final = ("tests/conformance/", "tests/golden/", "tests/model/")
_PATIENT_S: Final = 4.0


@pytest.fixture(autouse=True)
def _busy_is_not_frozen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.nodeid.startswith(_COMPARING):
        for module in (connection, node):
            monkeypatch.setattr(module, "SILENT_S", _PATIENT_S)


postgres_plans.watch()


@pytest.fixture(autouse=True)
def _statements_use_their_indexes() -> Iterator[None]:
    yield
    assert postgres_plans.bad_plans() == []


# ---- what the tests of the server saw, over all processes

_ALL_OF_THE_SERVER: Final = {"", "tests", "tests/server"}


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["answers"] = sorted(recording.seen)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    recording.seen.update(map(tuple, getattr(node, "workeroutput", {}).get("answers", ())))


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Once every test of the server has passed, each documented answer must have been seen."""
    outcome = yield
    if _has_run_everything(session) and (left := recording.missing(recording.seen)):
        session.testsfailed += 1
        sys.stderr.write("\n" + "\n".join(left) + "\n")
    return outcome


def _has_run_everything(session: pytest.Session) -> bool:
    config = session.config
    if hasattr(config, "workerinput") or session.testsfailed or config.option.collectonly:
        return False
    asked = config.option
    narrowed = (
        asked.keyword
        or asked.markexpr != "not long"
        or asked.ignore
        or asked.deselect
        or getattr(asked, "lf", False)
    )
    root = config.rootpath
    given = {(config.invocation_params.dir / one).resolve() for one in config.args}
    return not narrowed and any((root / one).resolve() in given for one in _ALL_OF_THE_SERVER)
