"""What `doctor` finds wrong with the way to a database."""

import subprocess
import sys
from pathlib import Path

import msgspec

from flowfabric.app import database_findings
from flowfabric.config import Settings, parse_store_url
from tests.postgres_server import shared_postgres

REPOSITORY = Path(__file__).resolve().parents[2]


def _found(url: str) -> list[str]:
    store = parse_store_url(url)
    options = {**store.options, "sslmode": "disable"}
    settings = Settings(store=msgspec.structs.replace(store, options=options))
    return [what for what, _ in database_findings(settings) if "pooler" in what]


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
