"""Where the cache lives and how much it may take: the default rules, the refusals, and what is said about them.

Every decision carries the sentence that is said once at start, with the flag that changes it. Nothing here remembers anything.
"""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forebay_proxy.config.settings import Settings
from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.quantities import CacheLimit, ShareOfDisk, TotalBytes, format_size

__all__ = [
    "CacheLocation",
    "Capacity",
    "Disk",
    "Machine",
    "choose",
    "decide_capacity",
    "file_system_type",
    "in_container",
    "is_memory",
    "is_network",
    "measure",
    "prepare",
    "read_mounts",
]


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


_DEFAULT_SHARE = 0.75  # of what is free: the rest of the node writes too
_DEFAULT_MOST = 500 * 10**9  # a working set beyond this is a decision a person should take
_IN_CONTAINER = 20 * 2**30  # the disk shown is the node's; pods are commonly evicted for more than a few tens of GiB


@dataclass(frozen=True, slots=True)
class Machine:
    """What the rules ask of the machine; tests hand in their own."""

    mountinfo: str
    container: bool
    host: str
    uid: int

    @classmethod
    def here(cls, environ: Mapping[str, str]) -> Machine:
        return cls(read_mounts(), in_container(environ), socket.gethostname().partition(".")[0] or "localhost", os.getuid())

    def file_system_type(self, path: Path) -> str:
        return file_system_type(Path(os.path.realpath(path)), self.mountinfo)


@dataclass(frozen=True, slots=True)
class CacheLocation:
    """A cache directory, what should be said about how it was chosen, and what is amiss with it."""

    path: Path
    notices: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def beside(self, fingerprint: str) -> CacheLocation:
        """The directory for a second sidecar, with other credentials than the sidecar of this one."""
        return CacheLocation(self.path.with_name(f"{self.path.name}-{fingerprint}"), self.notices)


@dataclass(frozen=True, slots=True)
class Disk:
    """Bytes of a file system: free for us, in all, and already held by the cache directory."""

    free_bytes: int
    total_bytes: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """``capacity_bytes`` is what was asked for, ``effective_bytes`` what fits above the free floor now (0: everything bypasses)."""

    capacity_bytes: int
    effective_bytes: int
    floor_bytes: int
    notices: tuple[str, ...] = ()


def choose(settings: Settings, environ: Mapping[str, str], machine: Machine) -> CacheLocation:
    """The cache directory by ``--cache-dir``, else the default rule; nothing is created or checked yet.

    Default: ``$SLURM_TMPDIR/forebay-<uid>``, else ``$TMPDIR/forebay-<uid>`` on a local disk, else ``$XDG_CACHE_HOME/forebay/<host>``.
    """
    if settings.cache_dir is not None:
        return CacheLocation(Path(os.path.abspath(settings.cache_dir)))
    passed_over = ""
    for variable in ("SLURM_TMPDIR", "TMPDIR"):
        parent = environ.get(variable, "")
        if not parent:
            continue
        unfit = _unfit(parent, variable, machine)
        if not unfit:
            return _default_place(Path(parent) / f"forebay-{machine.uid}", f"${variable}{passed_over}")
        passed_over += f"; ${variable} is passed over: {parent} {unfit}"
    cache_home, source = environ.get("XDG_CACHE_HOME", ""), "$XDG_CACHE_HOME"
    if not os.path.isabs(cache_home):
        if not environ.get("HOME"):
            step = "name one with --cache-dir"
            raise ConfigError(f"no cache directory: neither TMPDIR, XDG_CACHE_HOME nor HOME is set{passed_over}", next_step=step)
        cache_home, source = f"{environ['HOME']}/.cache", "$HOME/.cache"
    return _default_place(Path(cache_home) / "forebay" / machine.host, f"{source}{passed_over}")


def _unfit(parent: str, variable: str, machine: Machine) -> str:
    """Why nothing is stored below ``parent``; "" where it may be."""
    if not os.path.isabs(parent):
        return "is no absolute path"
    if not os.path.isdir(parent):
        return "is not there" if not os.path.lexists(parent) else "is no directory"
    kind = machine.file_system_type(Path(parent))
    if is_network(kind):
        return f"is on a network file system ({kind})"
    # Slurm's directory was given to this job, so memory is fine there; a TMPDIR in memory was not meant for hundreds of gigabytes.
    return f"is in memory ({kind})" if variable != "SLURM_TMPDIR" and is_memory(kind) else ""


def _default_place(path: Path, reason: str) -> CacheLocation:
    return CacheLocation(path, notices=(f"cache directory {path} (from {reason}); --cache-dir changes it",))


def prepare(place: CacheLocation, settings: Settings, machine: Machine) -> CacheLocation:
    """Where it really is, if that is a local disk, and who laid its link may. Nothing is created yet. Raises ``ConfigError``."""
    _check_link(place.path, machine.uid)
    path = Path(os.path.realpath(place.path))
    kind = machine.file_system_type(path)
    if is_network(kind) and not settings.allow_network_fs:
        raise ConfigError(
            f"cache directory {path} is on a network file system ({kind})",
            next_step="choose a local disk with --cache-dir, or say --allow-network-fs",
        )
    in_memory = f"cache directory {path} is in memory ({kind}): what it holds counts as used memory"
    return CacheLocation(path, place.notices, (in_memory,) if is_memory(kind) else ())


def _check_link(path: Path, uid: int) -> None:
    """A link that somebody else laid in a directory such as /tmp may lead into any directory of ours; we would keep house there."""
    try:
        found = path.lstat()
    except OSError:
        return  # not there yet, or said by what follows
    if stat.S_ISLNK(found.st_mode) and found.st_uid not in (uid, 0):
        raise ConfigError(
            f"cache directory {path} is a link that uid {found.st_uid} laid, not you (uid {uid})",
            next_step=f"name the directory itself with --cache-dir, as {os.path.realpath(path)}",
        )


def measure(path: Path) -> Disk:
    """The disk under ``path``, and what ``path`` holds of it, in allocated bytes; what vanishes while walking counts nothing."""
    found, held_bytes = os.statvfs(path), 0
    for directory, _, files in os.walk(path):
        for name in files:
            with suppress(FileNotFoundError):
                held_bytes += os.lstat(os.path.join(directory, name)).st_blocks * 512
    return Disk(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, held_bytes)


def decide_capacity(limit: CacheLimit | None, free_floor: float, disk: Disk, *, container: bool) -> Capacity:
    """How many bytes the cache may take: ``limit``, else the default rule; what fits above the floor is granted at once. Pure."""
    ours = disk.free_bytes + disk.held_bytes
    asked, reason = _asked(limit, ours, container=container)
    floor = int(disk.total_bytes * free_floor)
    fits = max(0, min(asked, ours - floor)) if disk.total_bytes else asked  # ramfs does not say: then what was asked for counts
    notices: tuple[str, ...] = (f"cache size {reason}; --cache-size changes it",) if limit is None else ()
    if fits < asked:
        notices += (
            f"cache size {format_size(asked)}, but only {format_size(fits)} fit while {free_floor * 100:g} % of the disk stays free "
            "(--free-floor changes that); the rest is used as room appears",
        )
    return Capacity(asked, fits, floor, notices)


def _asked(limit: CacheLimit | None, ours: int, *, container: bool) -> tuple[int, str]:
    """(bytes, the sentence that explains a default)"""
    match limit:
        case TotalBytes(count):
            return count, ""
        case ShareOfDisk(ratio):
            return int(ours * ratio), ""
    if container:
        return _IN_CONTAINER, "20 GiB, because this is a container and the disk it sees is the node's"
    share = int(ours * _DEFAULT_SHARE)
    if share > _DEFAULT_MOST:
        return _DEFAULT_MOST, "500 GB, the most that is taken unasked"
    return share, f"{format_size(share)}, 75 % of what is free"
