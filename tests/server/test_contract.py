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

from flowfabric.operations.nouns import DECLARED
from flowfabric.server.openapi import document_of
from flowfabric.server.routes import ROUTES
from tests.server.hostility import EXAMPLES, IS_COMPLETE
from tests.server.processes import environment
from tests.server.stores import SERVED
from tests.stores import url_of

TOKEN = "contract-0123456789"
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
# They answer each item by itself: one that violates its schema has an error in a response of 200.
IN_ITEMS = {one.name for one in DECLARED if one.owners.batch}
DOCUMENT = msgspec.json.decode(msgspec.json.encode(document_of(ROUTES)))
# An event stream has no end to wait for.
contract = schemathesis.openapi.from_dict(DOCUMENT).exclude(operation_id="follow_stream")


@pytest.fixture(scope="module", params=SERVED if IS_COMPLETE else ["sqlite"])
def address(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A server in a process of its own, shared by all cases."""
    directory = tmp_path_factory.mktemp("contract")
    log = directory / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "flowfabric.server"],
            env=environment(
                {
                    "FF_URL": url_of(request.param, directory),
                    "FF_API_TOKEN": TOKEN,
                    "FF_WAITPOINT_HMAC_SECRET": "5e" * 32,
                }
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
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_the_document_tells_the_truth(case: "schemathesis.Case[Any]", address: str) -> None:
    _hasten(case.query)
    _hasten(case.body)
    if case.headers.get("Authorization"):
        case.headers["Authorization"] = f"Bearer {TOKEN}"
    refuses_whole = case.operation.definition.raw["operationId"] not in IN_ITEMS
    checks = [one for one in CHECKS if refuses_whole or one is not negative_data_rejection]
    case.call_and_validate(base_url=address, checks=checks, timeout=20)
