"""The served OpenAPI document against the server: whatever fits it is answered as it says."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from flowfabric.server.openapi import document_of
from flowfabric.server.routes import ROUTES
from tests.server.processes import environment

TOKEN = "contract"
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
DOCUMENT = msgspec.json.decode(msgspec.json.encode(document_of(ROUTES)))
# An event stream has no end to wait for.
contract = schemathesis.openapi.from_dict(DOCUMENT).exclude(operation_id="follow_stream")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server in a process of its own, shared by all cases."""
    directory = tmp_path_factory.mktemp("contract")
    log = directory / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "flowfabric.server"],
            env=environment(
                {"FF_SQLITE_PATH": str(directory / "contract.db"), "FF_API_TOKEN": TOKEN}
            ),
            stderr=out,
        )
    try:
        yield _address(log, process)
    finally:
        process.terminate()
        process.wait(30)


def _address(log: Path, process: "subprocess.Popen[bytes]") -> str:
    while process.poll() is None:
        for line in log.read_text().splitlines():
            if " on http://" in line:
                return "http://" + line.partition(" on http://")[2].partition(": ")[0]
    raise RuntimeError(log.read_text())


def _hasten(members: Any) -> None:
    """Nobody waits here: it is the answers that matter."""
    if isinstance(members, dict):
        for name in ("wait_ms", "block_ms"):
            if str(members.get(name, "")).isdigit() and int(members[name]) <= 30_000:
                members[name] = type(members[name])(1)


@contract.parametrize()
@settings(
    max_examples=3,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_the_document_tells_the_truth(case: "schemathesis.Case[Any]", address: str) -> None:
    _hasten(case.query)
    _hasten(case.body)
    if case.headers.get("Authorization"):
        case.headers["Authorization"] = f"Bearer {TOKEN}"
    case.call_and_validate(base_url=address, checks=CHECKS, timeout=20)
