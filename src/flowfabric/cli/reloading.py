"""A child process that is started anew whenever the code it runs changes."""

import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_LOOK_S: Final = 0.5


def reloading(command: list[str], target: str) -> int:
    """Run until the child ends by itself, or somebody ends us; the child's exit code."""
    # Ended by a signal we must still end the child, or it would go on without us.
    signal.signal(signal.SIGTERM, _leave)
    root = _root(target.partition(":")[0])
    child = subprocess.Popen(command)
    seen = _newest(root)
    try:
        while True:
            try:
                return child.wait(_LOOK_S)
            except subprocess.TimeoutExpired:
                newest = _newest(root)
            if newest != seen:
                seen = newest
                child.terminate()
                child.wait()
                child = subprocess.Popen(command)
    finally:
        child.terminate()
        child.wait()


def _leave(number: int, _: object) -> None:
    sys.exit(128 + number)


def _root(module: str) -> Path:
    """The folder whose files count: a package as a whole, or where the module lies."""
    spec = find_spec(module.partition(".")[0])
    origin = spec.origin if spec else None
    return Path(origin).parent if origin else Path.cwd()


def _newest(root: Path) -> tuple[int, float]:
    times = [path.stat().st_mtime for path in root.rglob("*.py")]
    return len(times), max(times, default=0.0)
