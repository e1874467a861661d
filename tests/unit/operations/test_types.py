"""What a type checker knows of declared operations: awaited, blocking, over HTTP and in process."""

from typing import assert_type

from flowfabric.core.rules.signals import Accepted, Duplicate
from flowfabric.fabric.admin import Admin, SyncAdmin
from flowfabric.fabric.submitter import Submitter
from flowfabric.operations.executions import AlreadySatisfied, Replayed, Revoked
from flowfabric.operations.signals import Approval, OpenWaitpoint
from flowfabric.operations.types import Page

DECISION = Approval(signal_name="approved", source_identity="ada")


async def awaited(admin: Admin) -> None:
    assert_type(await admin.state("e", 5), str)
    assert_type(await admin.revoke_lease("e"), Revoked | AlreadySatisfied)
    assert_type(await admin.list_pending_waitpoints("e"), Page[OpenWaitpoint])
    assert_type(await admin.approve("e", "w", DECISION), Accepted | Duplicate)


def blocking(admin: SyncAdmin) -> None:
    assert_type(admin.state("e"), str)
    assert_type(admin.replay("e", reason="again"), Replayed)
    assert_type(admin.approve("e", "w", DECISION), Accepted | Duplicate)


async def through_a_port(port: Submitter) -> None:
    assert_type(await port.replay("e"), Replayed)
    assert_type(await port.approve("e", "w", DECISION), Accepted | Duplicate)


def test_the_names_of_both_surfaces_are_the_declared_ones() -> None:
    for name in ("state", "replay", "revoke_lease", "approve", "list_pending_waitpoints"):
        assert getattr(Admin, name) is getattr(SyncAdmin, name) is getattr(Submitter, name)
