"""Which process this is, and whether another one of this host still runs."""

import os
from typing import Final

from flowfabric.core.processes import ProcessId

_BOOT: Final = "/proc/sys/kernel/random/boot_id"
_PIDS: Final = "/proc/self/ns/pid"
# Ended, though its parent has not taken notice yet.
_DEAD: Final = frozenset({b"Z", b"X"})


def own_process() -> ProcessId | None:
    """None where the host does not tell, or tells the numbers of another namespace."""
    pid = str(os.getpid())
    try:
        if os.readlink("/proc/self") != pid:
            return None
        boot, pids = boot_id(), str(os.stat(_PIDS).st_ino)
    except OSError:
        return None
    started = ticks_at_start(int(pid))
    return ProcessId(boot, pids, str(os.getuid()), pid, started) if started else None


def is_gone(process: ProcessId) -> bool:
    """Whether a process of this host, namespace and user has ended."""
    return ticks_at_start(int(process.pid)) != process.started


def boot_id() -> str:
    """Another one after each start of the host."""
    with open(_BOOT, encoding="ascii") as boot:
        return boot.read().strip()


def ticks_at_start(pid: int) -> str:
    """When a process started, counted from the start of the host; "" when it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as facts:
            # The name in brackets may hold anything; what follows is in fixed order.
            state, *after = facts.read().rpartition(b") ")[2].split()
    except OSError:
        return ""
    return "" if state in _DEAD else after[18].decode()
