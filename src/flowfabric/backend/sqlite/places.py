"""Where a file lies: its one name within this process, and places a database must not lie."""

import os
import re
import threading
from typing import Final

from flowfabric.errors import InvalidInput, Unavailable

# File systems whose locks or shared memory do not hold between machines.
_NETWORK: Final = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "davfs",
        "fuse.ceph",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "smb3",
        "smbfs",
    }
)
_OCTAL: Final = re.compile(r"\\([0-7]{3})")

# Canonical path -> the process that opened it.
_open: Final[dict[str, int]] = {}
_lock: Final = threading.Lock()


def canonical(path: str | os.PathLike[str]) -> str:
    """The one name of the file; symbolic links and relative paths lead to the same name."""
    text = os.fspath(path)
    if text in ("", ":memory:") or text.startswith("file:"):
        raise InvalidInput(f"path: expected the name of a file, got {text!r}")
    return os.path.realpath(text)


def occupy(path: str) -> None:
    """Take the file for this process: it has one writer, and one object that owns it."""
    with _lock:
        owner = _open.get(path)
        if owner == os.getpid():
            raise Unavailable(
                f"sqlite: {path} is already open in this process: share that object, or close it"
            )
        if owner is not None:
            # A fork copies SQLite's locks in memory: both processes would believe they hold them.
            raise Unavailable(
                f"sqlite: {path} was open when this process was forked: start processes with"
                " 'spawn', or open the file after the fork"
            )
        _open[path] = os.getpid()


def release(path: str) -> None:
    with _lock:
        _open.pop(path, None)


def refuse_network(path: str) -> None:
    kind = file_system_of(path, _mounts())
    if kind in _NETWORK:
        raise InvalidInput(
            f"path: {path} lies on a network file system ({kind}), where SQLite's locks do not"
            " hold: put it on a local disk, or use a database server"
        )


def _mounts() -> str:
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
            return mounts.read()
    except OSError:
        return ""


def file_system_of(path: str, mounts: str) -> str:
    """The type of the file system that holds the path, by the kernel's list; "" when unknown."""
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[1])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        # Of two mounts at one point the later one is on top.
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind
