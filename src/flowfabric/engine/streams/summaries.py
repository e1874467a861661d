"""The rolling summary of an attempt: patches merged by its one writer, under the stored version."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from flowfabric.backend.optimistic import WRITE_CONFLICT, WriteConflict, decide
from flowfabric.backend.types import Append, Appended, StreamRefused, SummaryPut
from flowfabric.core.merge_patch import (
    Object,
    merge_all,
    read_document,
    size_fault,
    write_document,
)
from flowfabric.core.streams import explain_append
from flowfabric.engine.deps import Deps

Patches = Mapping[int, Object]
# Execution, attempt and lease: a document is not carried from one holder to the next.
_Key = tuple[str, int, str]

# Documents are remembered up to this many bytes of their stored form.
_REMEMBERED_BYTES: Final = 16 * 1024 * 1024
# Follows from no version: a store can only refuse it, or say that the frames were there already.
_NEVER: Final = SummaryPut(-1, b"", 0)


class Version(NamedTuple):
    """A document and how many patches made it. What was remembered may be behind what is stored,
    and the store will tell; what is fresh was read for the decision at hand."""

    number: int
    document: Object
    size: int = 0
    is_fresh: bool = False


_NOTHING: Final = Version(0, {})


class Summaries:
    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self._known = _Known()

    async def append(self, item: Append, patches: Patches) -> Appended:
        """Append frames with patches among them, which are given by their positions."""
        key = (item.execution_id, item.attempt_index, item.fence.lease_id)
        # Patches of one stream queue up, so that only other processes can come in between.
        async with self._deps.locks.of(f"summary of {item.execution_id} {item.attempt_index}"):
            # If what is remembered holds, or there is no document yet, one trip is all.
            known = self._known.get(key)
            left = patches

            async def attempt() -> Appended | WriteConflict:
                nonlocal known, left
                answer, merged = await self._attempt(item, known, left)
                if isinstance(answer, Appended):
                    if not answer.replayed:
                        self._known.put(key, merged)
                    return answer
                left = {at: patch for at, patch in patches.items() if at not in answer.repeated}
                known = await self._read(item)
                return WRITE_CONFLICT

            return await decide("the summary of", item.execution_id, attempt, self._deps.chance)

    async def _attempt(
        self, item: Append, known: Version, patches: Patches
    ) -> tuple[Appended | StreamRefused, Version]:
        """Merge and append. That a document would grow too large can be said only of a fresh one,
        and only when nothing else stands in the way."""
        document = merge_all(known.document, patches.values())
        encoded = write_document(document)
        fault = size_fault(encoded)
        put = _NEVER if fault else SummaryPut(known.number, encoded, len(patches))
        answer = await self._deps.store.append(msgspec.structs.replace(item, summary=put))
        if isinstance(answer, StreamRefused):
            reason = explain_append(
                item.execution_id, item.attempt_index, item.fence, answer.seen, answer.now
            )
            if reason is None and known.is_fresh and patches.keys().isdisjoint(answer.repeated):
                reason = fault
            if reason is not None:
                raise reason
        return answer, Version(known.number + len(patches), document, len(encoded))

    async def _read(self, item: Append) -> Version:
        backend = self._deps.store.backend
        stored = await backend.summary(item.execution_id, item.attempt_index)
        if stored is None:
            return _NOTHING._replace(is_fresh=True)
        return Version(stored.version, read_document(stored.document), is_fresh=True)


class _Known:
    """The documents used last, within a limit of memory."""

    def __init__(self) -> None:
        self._versions: OrderedDict[_Key, Version] = OrderedDict()
        self._bytes = 0

    def get(self, key: _Key) -> Version:
        return self._versions.get(key, _NOTHING)

    def put(self, key: _Key, version: Version) -> None:
        before = self._versions.pop(key, _NOTHING)
        self._versions[key] = version
        self._bytes += version.size - before.size
        while self._bytes > _REMEMBERED_BYTES:
            _, oldest = self._versions.popitem(last=False)
            self._bytes -= oldest.size
