"""An item of a batch whose outcome is not yet read."""

import msgspec

from flowfabric.operations.errors import ErrorBody
from flowfabric.operations.types import Answer


class RawItem(Answer, frozen=True, kw_only=True):
    ok: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: ErrorBody | None = None
