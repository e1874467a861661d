"""A child process that is started anew whenever the code it runs changes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_LOOK_S: Final = 0.5
# Marks a directory of installed packages, which nobody edits.
_INSTALLED: Final = "pyvenv.cfg"


def reloading(command: list[str], target: str) -> int:
    """Run until the child ends well or somebody ends us; the exit code. A child that ends because
    of a mistake is started anew when that may be corrected."""
    # Ended by a signal we must still end the child, or it would go on without us.
    signal.signal(signal.SIGTERM, _leave)
    root = _root(target.partition(":")[0])
    seen = newest(root)
    child = subprocess.Popen(command)
    try:
        while True:
            if _ended(child) == 0:
                return 0
            now = newest(root)
            if now != seen:
                seen = now
                child.terminate()
                child.wait()
                child = subprocess.Popen(command)
    except KeyboardInterrupt:
        return 130
    finally:
        child.terminate()
        child.wait()


def _ended(child: "subprocess.Popen[bytes]") -> int | None:
    """The exit code of the child; None while it runs. Takes a moment either way."""
    if child.returncode is not None:
        # It ended by a mistake, and only a change can help.
        time.sleep(_LOOK_S)
        return child.returncode
    try:
        code = child.wait(_LOOK_S)
    except subprocess.TimeoutExpired:
        return None
    if code:
        sys.stderr.write("waiting for a change of the code; Ctrl-C ends this\n")
        sys.stderr.flush()
    return code


def _leave(number: int, _: object) -> None:
    sys.exit(128 + number)


def _root(module: str) -> Path:
    """The folder whose files count: a package as a whole, or where the module lies."""
    spec = find_spec(module.partition(".")[0])
    origin = spec.origin if spec else None
    return Path(origin).parent if origin else Path.cwd()


def newest(root: Path) -> tuple[int, float]:
    """How many source files there are, and when the last of them was changed."""
    times = list(_times(root))
    return len(times), max(times, default=0.0)


def _times(root: Path) -> Iterator[float]:
    for folder, folders, files in os.walk(root):
        if _INSTALLED in files:
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        for name in files:
            if name.endswith(".py"):
                try:
                    yield os.stat(os.path.join(folder, name)).st_mtime
                except FileNotFoundError:
                    # An editor writes beside a file and moves the new one into its place.
                    continue
