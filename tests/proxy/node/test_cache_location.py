"""Where the cache lives and how much it takes: the default rules and the refusals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.config.settings import Settings
from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.quantities import ShareOfDisk, TotalBytes
from forebay_proxy.node.cache_location import (
    CacheLocation,
    Disk,
    Machine,
    choose,
    decide_capacity,
    file_system_type,
    in_container,
    is_memory,
    is_network,
    measure,
    prepare,
    read_mounts,
)

LOCAL = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"


def machine(mounts: str = "", *, container: bool = False) -> Machine:
    return Machine(LOCAL + mounts, container, "node7", os.getuid())


def mount(point: Path, kind: str) -> str:
    return f"2 1 0:1 / {point} rw,relatime shared:1 - {kind} source rw\n"


def test_a_named_directory_is_taken(tmp_path: Path) -> None:
    """--cache-dir wins over every rule and says nothing."""
    place = choose(Settings(cache_dir=tmp_path), {"TMPDIR": "/tmp"}, machine())
    assert place == CacheLocation(tmp_path)


def test_the_order_of_defaults(tmp_path: Path) -> None:
    """SLURM_TMPDIR, then TMPDIR, then XDG_CACHE_HOME, then HOME; the choice is said with the flag that changes it."""
    environ = {"SLURM_TMPDIR": str(tmp_path), "TMPDIR": str(tmp_path), "XDG_CACHE_HOME": "/xdg", "HOME": "/home/me"}
    uid = os.getuid()
    expected = [tmp_path / f"forebay-{uid}", tmp_path / f"forebay-{uid}", Path("/xdg/forebay/node7"), Path("/home/me/.cache/forebay/node7")]
    for path, variable in zip(expected, list(environ), strict=True):
        place = choose(Settings(), environ, machine())
        assert place.path == path
        assert "--cache-dir changes it" in place.notices[0]
        del environ[variable]


def test_it_is_said_what_the_choice_came_from(tmp_path: Path) -> None:
    """A variable that is not set is not named; one that cannot be used is, and why."""
    (said,) = choose(Settings(), {"TMPDIR": str(tmp_path / "none"), "HOME": "/home/me"}, machine()).notices
    assert "(from $HOME/.cache; $TMPDIR is passed over: " in said
    assert "none is not there)" in said
    assert "XDG" not in said
    (said,) = choose(Settings(), {"TMPDIR": "tmp", "XDG_CACHE_HOME": "/xdg"}, machine()).notices
    assert "(from $XDG_CACHE_HOME; $TMPDIR is passed over: tmp is no absolute path)" in said


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "tmpfs"])
def test_tmpdir_counts_only_on_a_local_disk(tmp_path: Path, kind: str) -> None:
    """A TMPDIR on the network or in memory is passed over."""
    environ = {"TMPDIR": str(tmp_path), "HOME": "/home/me"}
    assert choose(Settings(), environ, machine(mount(tmp_path, kind))).path == Path("/home/me/.cache/forebay/node7")


def test_slurms_directory_may_be_memory(tmp_path: Path) -> None:
    """It was given to this very job, whatever it is made of."""
    assert choose(Settings(), {"SLURM_TMPDIR": str(tmp_path)}, machine(mount(tmp_path, "tmpfs"))).path.parent == tmp_path


def test_nowhere_to_go_is_one_line() -> None:
    """An environment without any home needs the flag."""
    with pytest.raises(ConfigError, match="no cache directory") as caught:
        choose(Settings(), {}, machine())
    assert "--cache-dir" in caught.value.next_step


def test_a_network_file_system_is_refused_unless_asked_for(tmp_path: Path) -> None:
    """The message names the file system and both ways out; nothing is created. What counts is where a link leads."""
    (tmp_path / "nas").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nas")
    remote = machine(mount(tmp_path / "nas", "nfs4"))
    for folder in ("nas", "link"):
        place = CacheLocation(tmp_path / folder / "cache")
        with pytest.raises(ConfigError, match="network file system \\(nfs4\\)") as caught:
            prepare(place, Settings(), remote)
        assert "--allow-network-fs" in caught.value.next_step
        assert not place.path.exists()
    assert prepare(place, Settings(allow_network_fs=True), remote).path == tmp_path / "nas" / "cache"


def test_memory_is_said(tmp_path: Path) -> None:
    """A cache in tmpfs takes memory, and says so."""
    assert "memory" in prepare(CacheLocation(tmp_path), Settings(), machine(mount(tmp_path, "tmpfs"))).warnings[0]


def test_the_default_is_three_quarters_of_free_and_held() -> None:
    """What the cache already holds counts as its own, so a restart does not shrink it."""
    assert decide_capacity(None, 0.05, Disk(60 * 10**9, 200 * 10**9, 40 * 10**9), container=False).capacity_bytes == 75 * 10**9


def test_the_default_has_a_most() -> None:
    """Beyond 500 GB a person decides; both the number and the flag are said."""
    found = decide_capacity(None, 0.05, Disk(10**13, 10**13, 0), container=False)
    assert found.capacity_bytes == 500 * 10**9
    assert "500 GB" in found.notices[0]
    assert "--cache-size" in found.notices[0]


def test_a_container_gets_twenty_gib() -> None:
    """Node space is not the pod's."""
    found = decide_capacity(None, 0.05, Disk(10**13, 10**13, 0), container=True)
    assert found.capacity_bytes == 20 * 2**30
    assert "20 GiB" in found.notices[0]


@pytest.mark.parametrize("limit", [TotalBytes(10**12), ShareOfDisk(0.9)])
def test_what_was_asked_for_is_not_capped(limit: Any) -> None:
    """The caps are for defaults; an explicit size is taken, in a container too, and nothing is said."""
    found = decide_capacity(limit, 0.05, Disk(10**13, 10**13, 0), container=True)
    assert found.capacity_bytes == (10**12 if isinstance(limit, TotalBytes) else 9 * 10**12)
    assert found.notices == ()


def test_a_nearly_full_disk_starts_with_what_fits() -> None:
    """The floor stays free; the difference is said."""
    found = decide_capacity(TotalBytes(100 * 10**9), 0.05, Disk(30 * 10**9, 200 * 10**9, 0), container=False)
    assert (found.capacity_bytes, found.effective_bytes, found.floor_bytes) == (100 * 10**9, 20 * 10**9, 10 * 10**9)
    assert "only 20.0 GB fit" in found.notices[0]


@given(
    st.one_of(st.none(), st.integers(1, 10**15).map(TotalBytes), st.floats(0.01, 1).map(ShareOfDisk)),
    st.floats(0, 0.99), st.integers(0, 10**15), st.integers(0, 10**15), st.integers(0, 10**15), st.booleans(),
)  # fmt: skip
def test_never_below_the_floor(limit: Any, floor: float, free: int, used: int, held: int, container: bool) -> None:
    """Whatever is asked, what is granted leaves the floor free and is not more than was asked."""
    disk = Disk(free, free + used + held + 1, held)
    found = decide_capacity(limit, floor, disk, container=container)
    assert 0 <= found.effective_bytes <= found.capacity_bytes
    assert found.effective_bytes == 0 or free + held - found.effective_bytes >= found.floor_bytes


def test_a_disk_is_measured_in_allocated_bytes(tmp_path: Path) -> None:
    """A sparse file holds what is allocated, not what it claims."""
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(10**9)
        file.write(b"x" * 8192)
    disk = measure(tmp_path)
    assert 8192 <= disk.held_bytes < 10**6
    assert 0 < disk.free_bytes <= disk.total_bytes


def test_a_file_system_that_does_not_say_how_full_it_is() -> None:
    """What was asked for counts; nothing is said of what fits."""
    found = decide_capacity(TotalBytes(2**30), 0.05, Disk(0, 0, 0), container=False)
    assert (found.effective_bytes, found.notices) == (2**30, ())


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
