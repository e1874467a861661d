"""What `doctor` finds wrong with a database, and with the way to it."""

import subprocess
import sys
from pathlib import Path

import msgspec
import psycopg
import pytest

from flowfabric.app import database_findings, migrate_store
from flowfabric.backend.postgres import upkeep
from flowfabric.config import Settings, parse_store_url
from tests.postgres_server import shared_postgres
from tests.stores import url_of

REPOSITORY = Path(__file__).resolve().parents[2]


def _findings(url: str) -> list[tuple[str, str]]:
    store = parse_store_url(url)
    options = {**store.options, "sslmode": "disable"}
    return database_findings(Settings(store=msgspec.structs.replace(store, options=options)))


def _found(url: str) -> list[str]:
    return [what for what, _ in _findings(url) if "pooler" in what]


def test_a_pooler_that_the_address_does_not_name_is_found() -> None:
    direct = shared_postgres().address
    port = parse_store_url(direct).port
    assert _found(direct) == []
    words = [sys.executable, "-m", "tests.integration.pooler", str(port)]
    with subprocess.Popen(words, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as between:
        try:
            assert between.stdout is not None
            there = direct.replace(f":{port}/", f":{between.stdout.readline().strip()}/")
            assert _found(there) == ["postgres: a pooler stands between"]
            assert _found(f"{there}?pooler=transaction&notify=off") == []
        finally:
            between.kill()


@pytest.mark.parametrize("name", ["fsync", "full_page_writes", "synchronous_commit", "autovacuum"])
def test_a_harmful_setting_is_found(name: str) -> None:
    """The server of the tests has all of them."""
    advice = dict(_findings(shared_postgres().address))
    assert advice[f"postgres: {name} is off"].endswith(": set it to on")


def test_a_long_transaction_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_LONG", upkeep._LONG.replace("60 seconds", "0 seconds"))
    with psycopg.connect(shared_postgres().address, application_name="report") as foreign:
        foreign.execute("SELECT 1")
        who = f"a transaction of report (pid {foreign.info.backend_pid}, idle in transaction)"
        (advice,) = [advice for what, advice in _findings(shared_postgres().address) if who in what]
    assert "pg_terminate_backend" in advice


def test_connections_that_run_out_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    few = upkeep._CONNECTIONS.replace("current_setting('max_connections')", "'1'")
    monkeypatch.setattr(upkeep, "_CONNECTIONS", few)
    (advice,) = [
        advice
        for what, advice in _findings(shared_postgres().address)
        if what.endswith(" of 1 connections are in use")
    ]
    assert "FF_POSTGRES_POOL_SIZE" in advice


async def test_dead_rows_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(upkeep, "_DEAD", upkeep._DEAD.replace("10000", "10"))
    url = url_of("postgres", tmp_path)
    await migrate_store(Settings(store=parse_store_url(url)))
    with psycopg.connect(shared_postgres().address, autocommit=True) as session:
        session.execute("VACUUM flowfabric.config")
        session.execute(
            "INSERT INTO flowfabric.config (name, version, body, due_at)"
            " SELECT n, 1, '', 0 FROM generate_series(1, 100) AS n"
        )
        session.execute("DELETE FROM flowfabric.config")
        session.execute("SELECT pg_stat_force_next_flush()")
        session.execute("SELECT 1")
    (advice,) = [
        advice for what, advice in _findings(url) if what.startswith("postgres: config has ")
    ]
    assert advice == "VACUUM flowfabric.config, and look for long transactions"
