"""What functions are asked about limits; see `requests`."""

from collections.abc import Sequence
from typing import Any

from flowfabric.backend.valkey.requests import Request


class Act(Request):
    """ff1_spend, ff1_slots: what to do, where, and with what (the structs below)."""

    name: str
    tag: str
    what: Request


class SpendAct(Request):
    budget_id: str
    amounts: list[Any]
    dedup_key: str
    execution_id: str


class ReleaseAct(Request):
    budget_id: str
    execution_id: str


class ResetAct(Request):
    budget_id: str
    only_if_due: bool


class ReserveAct(Request):
    budget_id: str
    amounts: list[Any]
    reservation_id: str
    execution_id: str
    ttl_ms: int


class CommitAct(Request):
    budget_id: str
    amounts: list[Any]
    reservation_id: str


class CancelAct(Request):
    budget_id: str
    reservation_id: str


class ExtendAct(Request):
    gate: str
    execution_id: str
    holder: str
    hold_ms: int


class VacateAct(Request):
    gate: str
    execution_id: str
    holder: str
    slot: bool
    entry: bool


class Admitting(Request):
    """ff1_admit. Promised is {gate, slots, entries}, ...: what dry items were shown by earlier
    calls of the same batch."""

    items: list["AdmitItem"]
    promised: Sequence[Any]
    restorable: bool


class AdmitItem(Request):
    """One execution that wants in. It waits by its rank, unless that is False, and needs an entry
    (1) or none (0)."""

    execution_id: str
    asks: list["AskLimit"]
    holder: str
    hold_ms: int
    rank: int | bool
    needs_entry: int
    look_ms: int
    grant_id: str
    dry: bool


class AskLimit(Request):
    tag: str
    limit: str
    cap: int


class Restoring(Request):
    """ff1_restore: changes as ff1_admit answered them."""

    execution_id: str
    holder: str
    changes: list[Any]


class ReadLimit(Request):
    """ff1_limits"""

    tag: str
    limit: str


class ListAttached(Request):
    """ff1_attached"""

    tag: str
    budget_id: str
    after: str
    limit: int


class Attaching(Request):
    """ff1_attach: budget and execution in turn for those that are created and for those that are
    purged, and executions whose ledgers go."""

    tag: str
    listed: Sequence[str]
    unlisted: Sequence[str]
    gone: Sequence[str]
