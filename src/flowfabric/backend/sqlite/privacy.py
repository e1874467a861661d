"""Who may read the file: it holds payloads, tokens and the signing key."""

import logging
import os
import stat
from typing import Final

_log = logging.getLogger("flowfabric.backend.sqlite")

OWNER_ONLY: Final = 0o600


def make_private(path: str) -> None:
    """Create the file for its owner only, whatever the umask. SQLite gives its log and its shared
    memory the mode of the file. One that is there already keeps its mode, with a warning."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, OWNER_ONLY))
    except FileExistsError:
        _warn_of_readers(path)
    except OSError:
        # SQLite fails on it, too, and its error is the one that is told.
        return


def _warn_of_readers(path: str) -> None:
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & ~OWNER_ONLY:
        _log.warning(
            "%s has mode %04o: others may read payloads and keys; run chmod 600 on it", path, mode
        )
