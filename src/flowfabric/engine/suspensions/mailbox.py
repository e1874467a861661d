"""The mailbox of an execution: signals sent to it by its id, and read by its holder."""

from typing import Final

from flowfabric.backend.types import Seen
from flowfabric.core.documents import MAILBOX, SUSPENSION, mail_key_name
from flowfabric.core.ids import check_text, parse_execution_id
from flowfabric.core.plan import Plan
from flowfabric.core.rules.mailbox import post
from flowfabric.core.rules.signals import repeat
from flowfabric.core.suspensions import Signal, known_signal, mail_in, received
from flowfabric.engine.checking import body
from flowfabric.engine.deciding import decide_with_documents
from flowfabric.engine.deps import Deps
from flowfabric.engine.suspensions.signals import MOST_PAYLOAD_BYTES, check_signal_name
from flowfabric.operations import signals
from flowfabric.operations.declaration import implements
from flowfabric.operations.signals import Delivered, Mail, Unread

ID_BYTES: Final = 256


class Mailboxes:
    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    @implements(signals.Signals.signal_by_name)
    async def signal_by_name(
        self, execution_id: str, name: str, mail: Mail, *, caller: str = ""
    ) -> Delivered:
        """Keep a signal in the mailbox, unless its id came before."""
        parse_execution_id(execution_id, self._deps.counts)
        signal = self._signal(name, mail, caller)
        key = signal.idempotency_key
        names = (SUSPENSION, mail_key_name(key)) if key else (SUSPENSION,)

        def decision(seen: Seen) -> tuple[Plan, Delivered]:
            known = known_signal(seen.documents.get(mail_key_name(key)), seen.now) if key else ""
            if known:
                return repeat(seen.record, signal, known)
            return post(seen.record, seen.documents, signal)

        _, delivered = await decide_with_documents(self._deps, execution_id, names, decision)
        return delivered

    def _signal(self, name: str, mail: Mail, caller: str) -> Signal:
        given = check_text(mail.id, "id", ID_BYTES)
        payload = None if mail.payload is None else bytes(mail.payload)
        return Signal(
            signal_id=given or self._deps.mint(),
            waitpoint_id="",
            target_scope="execution",
            signal_name=check_signal_name(name),
            signal_category="mail",
            source_type="external",
            source_identity=caller,
            idempotency_key=given,
            payload=payload and body(payload, "payload", MOST_PAYLOAD_BYTES),
        )

    @implements(signals.Signals.read_mailbox)
    async def read_mailbox(self, execution_id: str) -> Unread:
        parse_execution_id(execution_id, self._deps.counts)
        seen = await self._deps.seen(execution_id, documents=(MAILBOX,))
        return Unread(tuple(map(received, mail_in(seen.documents))))
