"""Processes as workers name them: two of one place can see whether the other still runs."""

from typing import Final

import msgspec

_MEMBERS: Final = 5
_SEPARATOR: Final = "/"


class ProcessId(msgspec.Struct, frozen=True):
    """A process of a host. Its number may be given again; with the time it started it is unique.

    `boot` tells the host, until that starts anew, and `pids` the namespace of process numbers: two
    containers may share the name of a host and not see each other. `user` is in it because a user
    may be hidden the processes of others.
    """

    boot: str
    pids: str
    user: str
    pid: str
    started: str

    def __str__(self) -> str:
        return _SEPARATOR.join(msgspec.structs.astuple(self))

    def sees(self, other: "ProcessId") -> bool:
        """Whether the other one is another process of the same place."""
        return self.place == other.place and self != other

    @property
    def place(self) -> tuple[str, str, str]:
        return self.boot, self.pids, self.user


def parse_process(text: str) -> ProcessId | None:
    """None for a process that cannot be told from others."""
    members = text.split(_SEPARATOR)
    return ProcessId(*members) if len(members) == _MEMBERS and all(members) else None
