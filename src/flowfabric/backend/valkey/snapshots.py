"""What was read of a store, so that the reference can run over it and a commit can tell whether it
still holds."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from flowfabric.backend.valkey.calls import Calls, Read, Reply
from flowfabric.errors import Corruption

# A call with more reads would keep others waiting.
MOST_READS: Final = 500
# How the digest of a reply begins that is an error.
_FAULT: Final = "!"


class Unread(BaseException):
    """Something is asked for that was not read yet. It is no `Exception`, because the reference
    answers an item by the exception that it raises."""

    def __init__(self, reads: Iterable[Read]) -> None:
        super().__init__()
        self.reads = list(reads)


class Snapshot:
    """Replies to reads and their digests, as of `now`."""

    def __init__(self) -> None:
        self.now = 0
        # Replies to one call are of one instant.
        self.calls = 0
        self._found: dict[Read, tuple[Any, str]] = {}

    @property
    def reads(self) -> list[Read]:
        return list(self._found)

    @property
    def digests(self) -> list[str]:
        return [digest for _, digest in self._found.values()]

    def replies(self, reads: Sequence[Read]) -> list[Any]:
        found = self._found
        missing = [read for read in reads if read not in found]
        if missing:
            raise Unread(missing)
        return [self._reply(read) for read in reads]

    def _reply(self, read: Read) -> Any:
        reply, digest = self._found[read]
        if digest.startswith(_FAULT):
            raise unreadable(read, digest[1:])
        return reply

    async def load(self, calls: Calls, key: str, reads: Sequence[Read]) -> None:
        for start in range(0, len(reads), MOST_READS):
            part = reads[start : start + MOST_READS]
            reply = await calls.run("snapshot", key, part)
            self.now = self.now or reply.now
            self._keep(part, reply.head, reply)

    def renewed(self, digests: list[str], reply: Reply) -> "Snapshot":
        """The same reads, as a commit that was refused has found them."""
        renewed = Snapshot()
        renewed.now = reply.now
        renewed._keep(self.reads, digests, reply)
        return renewed

    def _keep(self, reads: Sequence[Read], digests: list[str], reply: Reply) -> None:
        self.calls += 1
        for number, (read, digest) in enumerate(zip(reads, digests, strict=True), 1):
            self._found[read] = (reply.bodies[number], digest)


def unreadable(read: Read, why: str) -> Corruption:
    return Corruption(f"{' '.join(read[:2])}: cannot be read: {why}")
