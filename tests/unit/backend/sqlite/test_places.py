"""Where a database must not lie."""

import pytest

from flowfabric.backend.sqlite import places
from flowfabric.errors import InvalidInput

MOUNTS = r"""
/dev/vda / ext4 rw 0 0
server:/export /data nfs4 rw 0 0
/dev/vdb /data/local ext4 rw 0 0
//server/share /mnt/with\040space cifs rw 0 0
tmpfs /mnt/with\040space tmpfs rw 0 0
host /mnt/host 9p rw 0 0
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/a.db", "ext4"),
        ("/data/a.db", "nfs4"),
        ("/database/a.db", "ext4"),
        ("/data/local/deep/a.db", "ext4"),
        ("/mnt/with space/a.db", "tmpfs"),
        ("/mnt/host/a.db", "9p"),
    ],
)
def test_the_deepest_and_last_mount_decides(path: str, kind: str) -> None:
    assert places.file_system_of(path, MOUNTS) == kind


def test_a_network_file_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_mounts", lambda: MOUNTS)
    places.refuse_network("/data/local/a.db")
    with pytest.raises(InvalidInput) as refusal:
        places.refuse_network("/data/a.db")
    assert "/data/a.db lies on a network file system (nfs4)" in refusal.value.detail
    assert "put it on a local disk, or use a database server" in refusal.value.detail


def test_without_a_list_of_mounts_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_mounts", lambda: "")
    places.refuse_network("/data/a.db")
