"""Every example tells what its page says, line by line, on every store."""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType

import pytest

import examples
from examples import (
    agent,
    budget_ledger,
    deploy_approval,
    external_callback,
    incident_remediation,
    media_pipeline,
    nightly_schedule,
    operator_tour,
    orders,
    quick_start,
    quota_limits,
    race,
    retry_and_cancel,
    shopping_cart,
    tenants,
    token_budget,
    worker_registry,
    worker_runtime,
)
from tests.stores import url_of
from tests.valkey_server import shared_server

EXAMPLES = (
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
    shopping_cart,
    tenants,
    token_budget,
    worker_registry,
    worker_runtime,
)
PAGE = Path(examples.__file__).with_name("README.md").read_text()


def name_of(example: ModuleType) -> str:
    return example.__name__.rpartition(".")[2]


def told(name: str) -> list[str]:
    """The lines the page promises."""
    found = re.search(rf"^### {name}\n\n```text\n(.*?)\n```$", PAGE, re.DOTALL | re.MULTILINE)
    assert found, f"the page does not tell what {name} tells"
    return found[1].splitlines()


def is_as_told(line: str, promised: str) -> bool:
    return re.fullmatch(".+".join(map(re.escape, promised.split("…"))), line) is not None


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
@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
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
    _check_told(example, capsys)


async def test_orders_come_to_their_outcome_on_postgres(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FF_WAITPOINT_HMAC_SECRET", "5e" * 32)
    await orders.main(url_of("postgres", tmp_path))
    _check_told(orders, capsys)


def _check_told(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    lines, promised = capsys.readouterr().out.splitlines(), told(name_of(example))
    assert len(lines) == len(promised)
    for line, words in zip(lines, promised, strict=True):
        assert is_as_told(line, words)
