"""Logs on stderr: text on a terminal, elsewhere one JSON object per line, with the request they
belong to."""

import logging
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

import msgspec

from flowfabric.errors.plain import plain_json

REQUEST_ID: Final = ContextVar("request_id", default="")
# The name of the token a request came with.
CALLER: Final = ContextVar("caller", default="")

# Which attempt runs here: the fields that its log records carry.
TASK: Final[ContextVar[Mapping[str, object] | None]] = ContextVar("task", default=None)

# Attributes of every record; any other was passed as `extra`.
_OWN: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_AUDIT: Final = "flowfabric.audit"


class TaskLogFilter(logging.Filter):
    """Gives what a handler or a step logs, by whatever logger, the attributes `execution_id`,
    `kind` and `attempt_index`: `handler.addFilter(TaskLogFilter())`. It drops nothing."""

    def filter(self, record: logging.LogRecord) -> bool:
        for name, value in (TASK.get() or {}).items():
            record.__dict__.setdefault(name, value)
        return True


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for variable in (REQUEST_ID, CALLER):
            if value := variable.get():
                line[variable.name] = value
        line |= {name: value for name, value in record.__dict__.items() if name not in _OWN}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return plain_json(msgspec.json.encode(line, enc_hook=str).decode())


def write_logs(level: int | str = logging.INFO) -> None:
    """Send everything from this level on to stderr. The audit log is always written."""
    if isinstance(level, str):
        level = LEVELS[level]
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
    handler.setFormatter(text if sys.stderr.isatty() else JsonLines())
    handler.addFilter(TaskLogFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger(_AUDIT).setLevel(logging.INFO)
