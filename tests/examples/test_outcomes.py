"""Every example comes to what it tells, on every store."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType

import pytest

from examples import (
    agent,
    budget_ledger,
    deploy_approval,
    external_callback,
    incident_remediation,
    media_pipeline,
    nightly_schedule,
    operator_tour,
    quick_start,
    quota_limits,
    race,
    retry_and_cancel,
    tenants,
    token_budget,
    worker_registry,
    worker_runtime,
)
from tests.valkey_server import shared_server

TOLD = {
    agent: "a program: it works, agreed by ada; 3 thoughts, 10 tokens",
    budget_ledger: "50 set aside, 35 spent: 75 of 100",
    deploy_approval: "1.2.3 deployed, agreed by ada and bob",
    external_callback: "1200 paid, receipt R-7",
    incident_remediation: "db-1 restarted by second",
    media_pipeline: "render on graphics, listen on audio",
    nightly_schedule: "made up for: 7, again: True",
    operator_tour: "shipped: urgent, slow; unwanted: cancelled",
    quick_start: "heard of every end, cancelled: never",
    quota_limits: "never three in 1 s: True",
    race: "slow: cancelled",
    retry_and_cancel: "attempts: initial, retry, retry",
    tenants: "red heard of 2, of team web 1, of blue nothing",
    token_budget: "2 answered, 2 too dear, 80 of 100 spent",
    worker_registry: "heard by both",
    worker_runtime: "invoice 2 booked, 150 in all",
}


def memory(_: Path) -> list[str]:
    """None given: in memory, or on a file of its own for the one that has two processes."""
    return []


def sqlite(directory: Path) -> list[str]:
    return [f"sqlite:///{directory / 'example.db'}"]


def valkey(_: Path) -> list[str]:
    server = shared_server()
    server.clean()
    return [f"valkey://127.0.0.1:{server.port}"]


@pytest.mark.parametrize("store", [memory, sqlite, valkey])
@pytest.mark.parametrize("example", TOLD, ids=lambda one: one.__name__.rpartition(".")[2])
async def test_the_example_comes_to_its_outcome(
    example: ModuleType,
    store: Callable[[Path], list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # On a store that others may share, somebody has to choose the secret.
    monkeypatch.setenv("FF_WAITPOINT_HMAC_SECRET", "5e" * 32)
    main: Callable[..., Awaitable[None]] = example.main
    await main(*store(tmp_path))
    assert TOLD[example] in capsys.readouterr().out.splitlines()
