"""What a path lies on."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay_proxy.node.mounts import file_system_type, in_container, is_memory, is_network, read_mounts

TABLE = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:26 / /home rw - nfs4 server:/home rw
31 30 0:27 / /home/me/scratch rw - xfs /dev/nvme0n1 rw
32 22 0:28 / /mnt/with\\040space rw master:3 propagate_from:2 - fuse.sshfs host: rw
33 22 0:29 / /data rw - xfs /dev/sdb rw
34 22 0:30 / /data rw - lustre mds:/data rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"), ("/homework/x", "ext4"), ("/home/you", "nfs4"), ("/home/me/scratch/a/b", "xfs"), ("/mnt/with space/x", "fuse.sshfs"),
        ("/data/x", "lustre"),
    ],
)  # fmt: skip
def test_the_longest_mount_point_holds_the_path(path: str, kind: str) -> None:
    """Whole components count, escapes are read, a later mount covers an earlier one."""
    assert file_system_type(Path(path), TABLE) == kind


def test_no_table_says_nothing() -> None:
    """Where there is no /proc the type is unknown, and unknown is no network."""
    assert file_system_type(Path("/x"), "") == ""
    assert not is_network("")


def test_kinds() -> None:
    """Remote, local and in memory; FUSE is remote unless known to be local."""
    assert all(map(is_network, ["nfs", "nfs4", "cifs", "lustre", "ceph", "fuse.s3fs", "fuse.juicefs", "fuse", "9p"]))
    assert not any(map(is_network, ["ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs", "fuse.fuse-overlayfs", "fuseblk"]))
    assert is_memory("tmpfs")
    assert not is_memory("ext4")


def test_this_machine_has_a_root() -> None:
    """The real table is readable and knows where / is."""
    assert file_system_type(Path("/"), read_mounts())


@pytest.mark.parametrize("marker", [".dockerenv", "run/.containerenv", "run/systemd/container"])
def test_containers_are_recognised(tmp_path: Path, marker: str) -> None:
    """By what Kubernetes, Docker, Podman and systemd leave behind."""
    assert not in_container({}, tmp_path)
    assert in_container({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path)
    (tmp_path / marker).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / marker).write_text("")
    assert in_container({}, tmp_path)
