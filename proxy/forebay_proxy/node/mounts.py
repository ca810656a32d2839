"""What a path lies on: the file system type from the mount table, and whether this is a container. Pure but for two readers."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

__all__ = ["file_system_type", "in_container", "is_memory", "is_network", "read_mounts"]

# Where locks, sparse files or latency cannot be relied on: the bytes live on another machine.
_NETWORK = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "cvmfs", "daos", "fhgfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
    "orangefs", "panfs", "pvfs2", "quobyte", "smb3", "smbfs", "vastnfs", "wekafs",
})  # fmt: skip
# FUSE mounts say who serves them after the dot; these are local, any other is taken for remote.
_LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs", "fuse.mergerfs", "fuse.bindfs", "fuse.unionfs", "fuseblk", "fuse.lxcfs", "fuse.squashfuse"})
_MEMORY = frozenset({"tmpfs", "ramfs", "hugetlbfs"})
_OCTAL = re.compile(r"\\([0-7]{3})")


def read_mounts() -> str:
    """The mount table of this process, "" where there is none (not Linux)."""
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def file_system_type(path: Path, mountinfo: str) -> str:
    """Type of the file system that holds ``path`` (absolute, links resolved; it need not exist), "" when the table does not say."""
    best, found = -1, ""
    for line in mountinfo.splitlines():
        left, dash, right = line.partition(" - ")
        if not dash:
            continue
        point = Path(_OCTAL.sub(lambda match: chr(int(match[1], 8)), left.split(" ")[4]))
        # A later line for the same point covers the earlier one.
        if len(point.parts) >= best and path.is_relative_to(point):
            best, found = len(point.parts), right.split(" ")[0]
    return found


def is_network(kind: str) -> bool:
    """Whether a file system of this type lives on another machine."""
    return kind in _NETWORK or (kind.startswith("fuse") and kind not in _LOCAL_FUSE)


def is_memory(kind: str) -> bool:
    """Whether a file system of this type takes main memory."""
    return kind in _MEMORY


def in_container(environ: Mapping[str, str], root: Path = Path("/")) -> bool:
    """Whether free disk space here is a node's and not this process's to take."""
    if environ.get("KUBERNETES_SERVICE_HOST") or environ.get("container"):
        return True
    return any(os.path.exists(root / marker) for marker in (".dockerenv", "run/.containerenv", "run/systemd/container"))
