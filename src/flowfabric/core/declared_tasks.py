"""What workers say of their tasks: the options and the schemas of each kind, by release.

A kind has one document. Its entries differ in what they declare, or in their version; the newest is
that of the process that started last, by the store's clock. Processes that declare the same share
an entry.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from flowfabric.errors import Corruption

MOST_ENTRIES: Final = 20
# Of a namespace.
MOST_TASKS: Final = 2_000
MOST_BYTES: Final = 64 * 1024
MOST_DESCRIPTION_BYTES: Final = 4 * 1024
_DAY_MS: Final = 86_400_000
KEPT_MS: Final = 30 * _DAY_MS
# An entry is stored anew after this time, so that it is kept while its release is in use.
REFRESHED_MS: Final = _DAY_MS
DOCUMENT: Final = "task/"


class Declaration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a program declares of a task: the options of its submits, and the JSON schemas of its
    arguments and of its result."""

    version: str = ""
    lane: str = "default"
    priority: int | None = None
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    policy: str = ""
    delay_ms: int = 0
    delay_until: int = 0
    idempotency_key: str = ""
    arguments: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    description: str = ""


_MEMBERS: Final = Declaration.__struct_fields__
_SCHEMAS: Final = ("arguments", "result")


class DeclaredTask(Declaration, frozen=True, kw_only=True, omit_defaults=True):
    """A declaration, and who registered it last. Schemas that are too large are left out, and the
    digest is of the whole declaration."""

    digest: str
    build: str = ""
    worker_instance_id: str = ""
    started_at: int
    registered_at: int

    @property
    def rank(self) -> tuple[int, str]:
        return self.started_at, self.digest


Entries = tuple[DeclaredTask, ...]


def digest_of(declaration: Declaration) -> str:
    return hashlib.sha256(msgspec.json.encode(declaration, order="sorted")).hexdigest()[:16]


def registered(before: Entries, asked: DeclaredTask) -> Entries | None:
    """The entries with this one, the newest first; None when there is nothing to write."""
    same = next((one for one in before if _is_same(one, asked)), None)
    if same is not None:
        asked = msgspec.structs.replace(asked, started_at=max(same.started_at, asked.started_at))
        becomes_newest = same is not before[0] and asked.rank > before[0].rank
        if not becomes_newest and asked.registered_at - same.registered_at < REFRESHED_MS:
            return None
    others = (one for one in before if one is not same)
    entries = sorted((*others, asked), key=lambda one: one.rank, reverse=True)
    kept = _fitting(entries[:MOST_ENTRIES])
    return kept if any(_is_same(one, asked) for one in kept) else None


def _is_same(one: DeclaredTask, other: DeclaredTask) -> bool:
    return (one.version, one.digest) == (other.version, other.digest)


def _fitting(entries: Iterable[DeclaredTask]) -> Entries:
    """As many of the entries as one document holds, the first ones first. A schema is left out
    before an entry is."""
    kept: list[DeclaredTask] = []
    left = MOST_BYTES
    for entry in entries:
        for one in (entry, bare(entry)):
            size = size_of(one)
            if size <= left:
                kept.append(one)
                left -= size
                break
        else:
            break
    return tuple(kept)


def bare(entry: DeclaredTask) -> DeclaredTask:
    """The entry without its schemas."""
    return msgspec.structs.replace(entry, arguments=None, result=None)


def size_of(entry: DeclaredTask) -> int:
    return len(msgspec.json.encode(entry))


def keep_until(entries: Sequence[DeclaredTask]) -> int:
    return max(one.registered_at for one in entries) + KEPT_MS


def differences(one: Declaration, other: Declaration) -> tuple[str, ...]:
    """The members in which two declarations differ; schemas only where both are there."""
    pairs = {name: (getattr(one, name), getattr(other, name)) for name in _MEMBERS}
    return tuple(
        name
        for name, (mine, theirs) in pairs.items()
        if mine != theirs and not (name in _SCHEMAS and None in (mine, theirs))
    )


# ---- documents


def document_name(namespace: str, kind: str) -> str:
    """A kind is a name within its namespace, which has no colon."""
    return f"{DOCUMENT}{namespace}:{kind}"


def name_of(document: str) -> tuple[str, str]:
    """The namespace and the kind of a document."""
    namespace, _, kind = document.removeprefix(DOCUMENT).partition(":")
    return namespace, kind


def write_entries(entries: Entries) -> bytes:
    return msgspec.json.encode(entries)


_decoder: Final = msgspec.json.Decoder(Entries)


def read_entries(document: str, body: bytes) -> Entries:
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError as fault:
        raise Corruption(f"{document}: {fault}") from fault
