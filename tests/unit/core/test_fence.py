"""The fence triple: whole, absent, or refused."""

import pytest

from flowfabric.core.plan import Fence, fence_from
from flowfabric.errors import PartialFenceTriple

UNSET_TEXT: list[str | None] = [None, ""]
UNSET_EPOCH: list[int | None] = [None, 0]


def test_a_whole_triple_is_a_fence() -> None:
    assert fence_from("lease", 3, "attempt") == Fence("lease", 3, "attempt")


@pytest.mark.parametrize("lease_id", UNSET_TEXT)
@pytest.mark.parametrize("epoch", UNSET_EPOCH)
@pytest.mark.parametrize("attempt_id", UNSET_TEXT)
def test_an_empty_triple_is_none(
    lease_id: str | None, epoch: int | None, attempt_id: str | None
) -> None:
    assert fence_from(lease_id, epoch, attempt_id) is None


@pytest.mark.parametrize(
    ("lease_id", "epoch", "attempt_id", "absent"),
    [
        ("lease", 3, None, "attempt_id"),
        ("lease", None, "attempt", "lease_epoch"),
        ("lease", 0, "attempt", "lease_epoch"),
        ("", 3, "attempt", "lease_id"),
        ("lease", None, "", "lease_epoch, attempt_id"),
        (None, 3, "", "lease_id, attempt_id"),
        (None, 0, "attempt", "lease_id, lease_epoch"),
    ],
)
def test_part_of_a_triple_is_refused_naming_what_is_missing(
    lease_id: str | None, epoch: int | None, attempt_id: str | None, absent: str
) -> None:
    with pytest.raises(PartialFenceTriple) as refusal:
        fence_from(lease_id, epoch, attempt_id)
    assert refusal.value.detail == f"missing {absent}"
