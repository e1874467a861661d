"""The store itself: what it is, and the key it signs with."""

import msgspec

from flowfabric.core.documents import Redacted
from flowfabric.errors import InvalidKid, InvalidSecretHex, RotationConflict
from flowfabric.operations.declaration import ADMIN, ANY, operation
from flowfabric.operations.types import PUBLIC, STORE, Answer, Part


class Partitions(Answer, frozen=True, kw_only=True):
    """How many partitions each family has, so that clients can mint ids."""

    num_flow_partitions: int
    num_budget_partitions: int
    num_quota_partitions: int


class Capabilities(Answer, frozen=True, kw_only=True):
    """What the store says of itself. `now` is its clock."""

    family: str
    tag: int
    library_version: str
    server_version: str
    interface: int
    layout: int
    durability: str
    wakeup: str
    spread: str
    lane_order: str
    event_order: str
    transactional_submit: bool
    now: int = 0
    partitions: Partitions | None = None
    priority_range: tuple[int, int] = (0, 0)
    limits: dict[str, int] = msgspec.field(default_factory=dict)


class NewSecret(Redacted, Part, frozen=True, kw_only=True):
    """A signing key. The secret must never be printed."""

    hidden = frozenset({"new_secret_hex"})

    new_kid: str
    new_secret_hex: str


class SecretRotated(Answer, frozen=True, kw_only=True):
    """How many key rings have the new key, and those that do not."""

    rotated: int
    failed: list[str]
    new_kid: str


class Store:
    @operation("GET /v1/capabilities", ANY, owner=PUBLIC)
    async def describe(self) -> Capabilities:
        """What the store says of itself, its clock, and what may be asked for at once."""

    @operation("GET /v1/partitions", ANY, owner=PUBLIC)
    async def partitions(self) -> Partitions:
        """How many partitions there are, so that clients can mint ids."""

    @operation(
        "POST /v1/admin/rotate-waitpoint-secret",
        ADMIN,
        InvalidKid,
        InvalidSecretHex,
        RotationConflict,
        owner=STORE,
        timeout_s=130.0,
    )
    async def rotate_waitpoint_hmac_secret(self, new: NewSecret) -> SecretRotated:
        """Sign with a new key from now on; tokens of the old one stay valid for the grace.
        Repeating the same rotation is harmless."""
