"""Waiting for the outside: suspend, signal, time out, resume, and waitpoints handed out before.

Beside the comparison of two stores, what every waitpoint was sent is kept here, and a condition
is judged from all of it at once: a resume that comes too early or not at all is noticed.
"""

from typing import Any, Final

import msgspec
from hypothesis import strategies as st

from flowfabric.core.condition_checks import Binding, Fresh, UsePending
from flowfabric.core.conditions import (
    SATISFIED,
    Condition,
    SignalFacts,
    composite,
    keys_of,
    leaves,
    signal_set,
    single,
)
from flowfabric.core.rules.signals import Accepted, Duplicate
from flowfabric.core.suspend_outcomes import Details, Issued, Satisfied, Suspended
from flowfabric.core.suspensions import ReceivedSignal, ResumePolicy
from flowfabric.core.tokens import WaitpointToken
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.operations.attempts import SuspendOrder
from flowfabric.operations.signals import Approval
from tests.conditions import KEYS, NAMES, trees
from tests.judging import is_met
from tests.model import strategies as some
from tests.model.holders import Holders
from tests.model.sides import Side
from tests.moves import SignalRequest, deliver_signal

BUFFERED: Final = "buffered_for_pending_waitpoint"
BEHAVIOURS: Final = ("", "fail", "cancel", "expire", "auto_resume", "escalate")

conditions: Final = st.one_of(
    st.sampled_from(
        [
            single(),
            Condition(condition_type="operator_only"),
            Condition(condition_type="timeout_only"),
        ]
    ),
    st.builds(lambda names: signal_set(*names), st.lists(st.sampled_from(NAMES), max_size=3)),
    trees.map(composite),
    trees.map(composite),
)
orders: Final[st.SearchStrategy[dict[str, Any]]] = st.fixed_dictionaries(
    {
        "timeout_ms": st.sampled_from([None, None, 0, 700, 5_000]),
        "timeout_behavior": st.sampled_from(BEHAVIOURS),
        "idempotency_key": st.sampled_from(["", "", "once"]),
        "reason_code": st.sampled_from(["waiting_for_signal", "waiting_for_approval", "odd"]),
        "resume_policy": st.builds(
            ResumePolicy, resume_delay_ms=st.sampled_from([None, None, None, 300])
        ),
    }
)


def bindings_of(condition: Condition) -> tuple[Binding, ...] | None:
    """A fresh waitpoint for every key the condition names."""
    if condition.tree is None:
        return None
    keys = dict.fromkeys(key for leaf in leaves(condition.tree) for key in keys_of(leaf))
    return tuple(Fresh("", key) for key in keys)


class Address(msgspec.Struct):
    """A waitpoint as the outside knows it, and what it was sent while nobody waited there."""

    execution_id: str
    at: Issued
    early: list[SignalFacts] = msgspec.field(default_factory=list)
    wait: "Wait | None" = None


class Wait(msgspec.Struct):
    """A suspension: its condition, and all that came in since."""

    condition: Condition
    history: list[SignalFacts] = msgspec.field(default_factory=list)


Told = tuple[Details, tuple[ReceivedSignal, ...] | str]


def _told(outcome: Suspended | Satisfied) -> Told:
    """An outcome as both stores can give it: a handle also names its store."""
    if isinstance(outcome, Satisfied):
        return outcome.details, outcome.signals
    return outcome.details, outcome.handle.lease_id


class Waiters(Holders):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.addresses: list[Address] = []

    # ---- holders

    def _suspend(self, held: LeaseProof, sent: LeaseProof, data: st.DataObject) -> None:
        condition = data.draw(conditions)
        order = SuspendOrder(
            resume_condition=condition, waitpoints=bindings_of(condition), **data.draw(orders)
        )
        told = self._try(sent, order)
        if told is not None and not self._is_known(told):
            wait = Wait(condition)
            for issued in told[0].waitpoints:
                self.addresses.append(Address(held.execution_id, issued, wait=wait))

    def hand_out(self, data: st.DataObject) -> None:
        """A waitpoint before anybody waits, under any lease there ever was."""
        held = self.pick(data, self.holdings)
        if held is None:
            return
        sent = some.as_sent(held, data.draw(some.hows))
        length = data.draw(st.sampled_from([1, 800, 60_000]))
        key = data.draw(st.sampled_from(["", *KEYS]))
        made = self.both(
            lambda side: side.engine.waitpoints.create_pending_waitpoint(sent, length, key)
        ).value
        if made is not None:
            self.addresses.append(Address(held.execution_id, made))

    def wait_on_pending(self, data: st.DataObject) -> None:
        """Suspend where a waitpoint was handed out before; mostly by who could."""
        address = self.pick(data, self.addresses)
        if address is None:
            return
        own = [held for held in self.holdings if held.execution_id == address.execution_id]
        held = self.pick(data, own[-1:] * 3 + self.holdings)
        if held is None:
            return
        condition = data.draw(conditions)
        binding = UsePending(address.at.waitpoint_id)
        order = SuspendOrder(resume_condition=condition, waitpoints=(binding,), **data.draw(orders))
        told = self._try(some.as_sent(held, data.draw(some.hows)), order)
        if (
            told is None
            or told[0].waitpoints[0].waitpoint_id != address.at.waitpoint_id
            or address.wait
        ):
            return
        early = list(address.early)
        if isinstance(told[1], str):
            assert not is_met(condition, early), "early signals were passed over"
        else:
            counted = [one.signal_id for one in told[1]]
            last = [one.signal_id for one in early].index(counted[-1]) + 1
            assert is_met(condition, early[:last])
            assert not is_met(condition, early[: last - 1])
        address.wait = Wait(condition, early)

    def _try(self, sent: LeaseProof, order: SuspendOrder) -> Told | None:
        async def call(side: Side) -> Told:
            return _told(await side.engine.suspensions.try_suspend(sent, order))

        return self.both(call).value

    def _is_known(self, told: Told) -> bool:
        """A repeat is told of the waitpoints it was told of before."""
        known = {address.at.waitpoint_id for address in self.addresses}
        return told[0].waitpoints[0].waitpoint_id in known

    # ---- the outside

    def signal(self, data: st.DataObject) -> None:
        """To any waitpoint there ever was, mostly with its token."""
        address = self.pick(data, self.addresses)
        if address is None:
            return
        other = data.draw(st.sampled_from(self.addresses))
        token = data.draw(
            st.sampled_from([address.at.waitpoint_token] * 6 + [other.at.waitpoint_token])
        )
        request = SignalRequest(
            execution_id=address.execution_id,
            waitpoint_id=address.at.waitpoint_id,
            signal_id=self._signal_id(data),
            signal_name=data.draw(st.sampled_from([*NAMES, *NAMES, "z"])),
            signal_category="test",
            source_type=data.draw(st.sampled_from(["person", "machine"])),
            source_identity=data.draw(st.sampled_from(["ada", "grace"])),
            waitpoint_token=data.draw(st.sampled_from([token] * 8 + [WaitpointToken("")])),
            payload=data.draw(st.one_of(st.none(), some.bodies)),
            idempotency_key=data.draw(st.sampled_from(["", "", "", "k"])),
            dedup_ttl_ms=data.draw(st.sampled_from([0, 500, 86_400_000])),
            resume_delay_ms=data.draw(st.sampled_from([None, None, 0, 400])),
            max_signals_per_execution=data.draw(st.sampled_from([None, None, None, 4])),
        )
        answer = self.both(lambda side: deliver_signal(side.engine, request)).value
        self._judge(address, answer, request.signal_name, _source(request))

    def approve(self, data: st.DataObject) -> None:
        address = self.pick(data, self.addresses)
        if address is None:
            return
        who = data.draw(st.sampled_from(["ada", "grace", "mary"]))
        own, at = address.execution_id, address.at.waitpoint_id
        decision = Approval(signal_name=data.draw(st.sampled_from(NAMES)), source_identity=who)
        answer = self.both(lambda side: side.engine.signals.approve(own, at, decision)).value
        self._judge(address, answer, decision.signal_name, ("operator", who))

    def wait_otherwise(self, data: st.DataObject) -> None:
        """Close a waitpoint, look, rotate the key: what goes on around a wait."""
        address = self.pick(data, self.addresses)
        if address is None:
            return
        own, at = address.execution_id, address.at.waitpoint_id
        match data.draw(st.sampled_from(["close", "list", "token", "read", "rotate", "expire"])):
            case "close":
                self.both(lambda side: side.engine.waitpoints.close_waitpoint(own, at))
            case "list":
                self.both(lambda side: side.engine.waitpoints.list_pending_waitpoints(own))
            case "token":
                self.both(lambda side: side.engine.waitpoints.read_waitpoint_token(own, at))
            case "read":
                self.both(lambda side: side.engine.signals.resume_signals(own, 0))
            case "rotate":
                kid = data.draw(st.sampled_from(["k1", "k2"]))
                self.both(
                    lambda side: side.engine.keys.rotate_waitpoint_hmac_secret(
                        kid, "5e" * 32 if kid == "k1" else "a7" * 32, 3_000
                    )
                )
            case _:
                self.both(lambda side: side.engine.scheduling.expire_suspension(own))

    def _resume_one(self, execution_id: str, data: st.DataObject) -> None:
        delay = data.draw(st.sampled_from([None, None, 0, 250]))
        self.both(lambda side: side.engine.operators.resume(execution_id, "operator", delay))

    def _signal_id(self, data: st.DataObject) -> str:
        number = data.draw(st.integers(0, 30))
        return f"00000000-0000-4000-8000-{number:012}"

    def _judge(
        self,
        address: Address,
        answer: Accepted | Duplicate | None,
        name: str,
        source: tuple[str, str],
    ) -> None:
        """A signal that was counted ends the wait exactly when all of them together meet it."""
        if not isinstance(answer, Accepted):
            return
        facts = SignalFacts(
            signal_id=answer.signal_id,
            name=name,
            waitpoint_id=address.at.waitpoint_id,
            waitpoint_key=address.at.waitpoint_key,
            source_type=source[0],
            source_identity=source[1],
        )
        if answer.effect == BUFFERED:
            assert address.wait is None
            address.early.append(facts)
            return
        wait = address.wait
        assert wait is not None
        wait.history.append(facts)
        assert (answer.effect == SATISFIED) == is_met(wait.condition, wait.history)


def _source(request: SignalRequest) -> tuple[str, str]:
    return request.source_type, request.source_identity
