"""Running an execution again: one that has ended or is parked, with or without what it has
recorded, or one whose holder asks for a new round."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from flowfabric.core.events import NONDETERMINISM, RESTARTED, released
from flowfabric.core.graph import GraphEdit
from flowfabric.core.plan import EndAttempt, Event, Fence, Guard, Plan
from flowfabric.core.record import NO_ATTEMPT, Record
from flowfabric.core.rules.mailbox import MailChange, put_back
from flowfabric.core.suspensions import ReceivedSignal


class ReplayRequest(msgspec.Struct, frozen=True):
    reason: str = ""
    requested_by: str = ""


class Reopening(msgspec.Struct, frozen=True):
    """The edges a skipped member waits for again, and how many of them nothing satisfies yet."""

    edit: GraphEdit
    unmet: int


class Dropped(msgspec.Struct, frozen=True):
    """What is lost of what was recorded: the journal from this entry on (1 is all, 0 nothing), and
    with `mailbox` the unread signals, whose documents are named. Without it, signals that the
    entries had `taken` lie in the mailbox again."""

    first: int = 1
    mailbox: bool = True
    unread: Collection[str] = ()
    taken: Sequence[ReceivedSignal] = ()


class Scene(msgspec.Struct, frozen=True):
    """What a replay is decided from beside the record."""

    now: int
    dropped: Dropped = Dropped()
    reopened: Reopening | None = None


def replay(record: Record, request: ReplayRequest, scene: Scene) -> Plan:
    """A skipped member waits for its reopened edges; the attempt of a parked execution ends."""
    dropped, reopened = scene.dropped, scene.reopened
    mail = _emptied(dropped.unread) if dropped.mailbox else put_back(record, dropped.taken)
    is_parked = record.state == "suspended"
    return Plan(
        target=record.execution_id,
        rule="replay",
        guard=Guard(frozenset({record.state}), version=record.version, uncancelled=True),
        set={
            **_goal(record, reopened, scene.now),
            **_FRESH,
            **mail.set,
            **_rounds(record, dropped),
            "replay_count": record.replay_count + 1,
            "replay_reason": request.reason,
            "replay_requested_by": request.requested_by,
            "previous_attempt": record.attempt_index if record.attempt_count else NO_ATTEMPT,
        },
        attempt=_PARKED if is_parked else None,
        close_stream="attempt_failure" if is_parked else "",
        blobs={"result": None},
        documents=mail.documents,
        drop_journal_from=dropped.first,
        graph=reopened.edit if reopened else None,
        event=_event(record, reopened),
    )


def _emptied(unread: Collection[str]) -> MailChange:
    return MailChange({"mail_count": 0, "mail_bytes": 0}, dict.fromkeys(unread))


def _goal(record: Record, reopened: Reopening | None, now: int) -> dict[str, Any]:
    goal: dict[str, Any] = {"state": "waiting", "next": "replay"}
    if reopened is not None:
        goal = {
            "state": "blocked",
            "reason": "dependencies",
            "next": "replay",
            "detail": f"{reopened.unmet} dep(s) unsatisfied after replay",
        }
    if record.deadline_at and record.deadline_at <= now:
        goal["deadline_at"] = 0
    return goal


def _rounds(record: Record, dropped: Dropped) -> dict[str, int]:
    """What is done anew needs names of its own; what no entry names any more may be purged."""
    if not dropped.first:
        return {}
    following = record.round + 1
    rounds = {"round": following}
    if dropped.first == 1:
        rounds["kept_round"] = following
    return rounds


def _event(record: Record, reopened: Reopening | None) -> Event:
    branch = "normal" if reopened is None else "skipped_flow_member"
    details = {
        "replay_count": str(record.replay_count + 1),
        "replay_type": branch,
        "branch": branch,
        "groups_reset": str(len(reopened.edit.groups) if reopened else 0),
    }
    return Event("replay_initiated", ("lease", "operator"), details)


class NewInput(msgspec.Struct, frozen=True):
    """What the next round begins with."""

    body: bytes
    encoding: str


def restart(record: Record, fence: Fence, new: NewInput, op: str) -> Plan:
    """Begin the next round: the identity of the execution stays, its tags, parent, deadline and
    mailbox."""
    following = record.round + 1
    return Plan(
        target=record.execution_id,
        rule="restart",
        guard=Guard(_ACTIVE, fence),
        op=op,
        set={
            "state": "waiting",
            "next": "first",
            "round": following,
            "kept_round": following,
            "retry_count": 0,
            "reclaim_count": 0,
            "replay_count": 0,
            "failure_reason": "",
            "failure_category": "",
            "input_encoding": new.encoding,
        },
        attempt=_SUCCEEDED,
        close_stream="attempt_success",
        blobs={"input": new.body},
        drop_journal_from=1,
        event=released(RESTARTED),
    )


_ACTIVE: Final = frozenset({"active"})
_SUCCEEDED: Final = EndAttempt("ended_success")
_PARKED: Final = EndAttempt("ended_failure", "parked, then replayed", NONDETERMINISM)
_FRESH: Final[Mapping[str, Any]] = {
    "retry_count": 0,
    "reclaim_count": 0,
    "completed_at": 0,
    "purge_at": 0,
    "failure_reason": "",
    "failure_category": "",
    "failure_step": "",
    "cancellation_reason": "",
    "cancelled_by": "",
    "result_encoding": "",
}
