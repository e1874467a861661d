"""Logs as lines of JSON: what each tells, and that nothing odd breaks one."""

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flowfabric.engine.audit import audit
from flowfabric.errors import InvalidInput
from flowfabric.telemetry import logs

Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def written(capsys: pytest.CaptureFixture[str]) -> Iterator[Lines]:
    """What is logged during a test; the loggers are as before afterwards."""
    root = logging.getLogger()
    names = ("", "flowfabric.audit")
    before = list(root.handlers), [logging.getLogger(name).level for name in names]
    yield lambda: [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    root.handlers[:] = before[0]
    for name, level in zip(names, before[1], strict=True):
        logging.getLogger(name).setLevel(level)


def test_a_line_tells_what_where_and_for_whom(written: Lines) -> None:
    logs.write_logs()
    request, caller = logs.REQUEST_ID.set("r-1"), logs.CALLER.set("ann")
    logging.getLogger("flowfabric.x").warning("odd %s", "thing\nindeed", extra={"lane": "a"})
    logs.REQUEST_ID.reset(request)
    logs.CALLER.reset(caller)
    (line,) = written()
    assert line.pop("at") > 0
    assert line == {
        "level": "warning",
        "logger": "flowfabric.x",
        "message": "odd thing\nindeed",
        "request_id": "r-1",
        "caller": "ann",
        "lane": "a",
    }


def test_an_error_has_its_traceback_on_the_same_line(written: Lines) -> None:
    logs.write_logs()
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("flowfabric.x").exception("failed", extra={"what": object()})
    (line,) = written()
    assert "ValueError: why" in line["error"]


def test_the_audit_trail_is_written_whatever_the_level(written: Lines) -> None:
    logs.write_logs(logging.ERROR)
    logging.getLogger("flowfabric.x").warning("not shown")
    audit("lease_revoked", execution_id="x")
    (line,) = written()
    assert (line["audit"], line["execution_id"]) == ("lease_revoked", "x")


def test_a_value_can_neither_forge_a_line_nor_steer_a_terminal(
    written: Lines, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = '\x1b[2J\x9b31m\x7f\u2028\u202e"}\n{"level": "error"}'
    logs.write_logs()
    logging.getLogger("flowfabric.x").warning("%s", hostile, extra={"lane": hostile})
    logging.getLogger("flowfabric.x").warning("%s", InvalidInput(hostile))
    raw = capsys.readouterr().err
    assert raw.isascii()
    assert not set(raw) & set("\x1b\x7f")
    first, second = map(json.loads, raw.splitlines())
    assert (first["message"], first["lane"]) == (hostile, hostile)
    assert "\n" not in second["message"]
