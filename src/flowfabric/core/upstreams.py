"""What feeds a member of a flow."""

import msgspec


class Upstream(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One input of a member: where it comes from, how that ended, and its result if it was read."""

    edge_id: str
    execution_id: str
    data_ref: str = msgspec.field(default="", name="data_passing_ref")
    outcome: str = ""
    satisfied_at: int = 0
    result: bytes | None = None
    result_encoding: str = ""
    result_deferred: bool = False
