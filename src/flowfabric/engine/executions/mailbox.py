"""The mailbox of an execution, as its readers see it: without payloads."""

from typing import Final

import msgspec

from flowfabric.core.documents import MAILBOX
from flowfabric.core.suspensions import mail_in
from flowfabric.engine.deps import Deps
from flowfabric.operations.execution_queries import ExecutionInfo, KeptSignal

MOST_LISTED: Final = 100


async def with_mailbox(deps: Deps, info: ExecutionInfo) -> ExecutionInfo:
    """The same with the first unread signals."""
    seen = await deps.seen(info.execution_id, documents=(MAILBOX,))
    unread = mail_in(seen.documents)
    listed = tuple(
        KeptSignal(
            signal_name=one.signal_name,
            signal_id=one.signal_id,
            accepted_at=one.accepted_at,
            payload_bytes=len(one.payload or b""),
        )
        for one in unread[:MOST_LISTED]
    )
    return msgspec.structs.replace(info, mail_count=len(unread), mailbox=listed)
