"""The cache directory: its layout, its one owner, and the files in it that are not ours.

    <cache dir>/lock            locked (flock) by the one process that owns the directory; names it, as JSON
                hmac.key        32 random bytes, the key of the credential HMACs in index rows
                index/          the index database
                index-broken/   a damaged index, kept for inspection
                shards/<key>    one sparse file per shard version
                samples/<key>   its sample index

Everything is reached through open directory descriptors, follows no symbolic link, and belongs to our uid. The sidecar makes all names
itself; none comes from outside.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import stat
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.store.files.file_io import is_plain
from forebay_proxy.wire.protocol.runfile import process_start_time

__all__ = [
    "HMAC_KEY", "LOCK", "Directory", "DirectoryOwned", "Look", "Scan", "StoredFile", "boot_id", "hmac_key", "take_lock", "write_lock",
]  # fmt: skip


LOCK, HMAC_KEY = "lock", "hmac.key"
_OPEN_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
_KEY_BYTES = 32


class DirectoryOwned(ConfigError):
    """Another process owns the cache directory. ``ending``: it is draining and gives the directory up within seconds."""

    def __init__(self, path: Path, owner: str, *, ending: bool) -> None:
        super().__init__(f"cache directory {path} is {owner}", next_step="use that sidecar, or name another with --cache-dir")
        self.ending = ending


def take_lock(root: int, path: Path) -> int:
    """The lock file of the directory ``root``, open and locked. Raises DirectoryOwned, which names the owner, or OSError."""
    fd = os.open(LOCK, _OPEN_FILE, 0o600, dir_fd=root)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        state, named = os.fstat(fd), os.stat(LOCK, dir_fd=root, follow_symlinks=False)
        if not _is_plain(state) or not os.path.samestat(state, named):
            raise OSError(errno.ESTALE, "its lock file is no plain file, or is being replaced")
    except BlockingIOError:
        owner, ending = _read_lock(fd)
        os.close(fd)
        raise DirectoryOwned(path, owner, ending=ending) from None
    except OSError:
        os.close(fd)
        raise
    return fd


def _read_lock(fd: int) -> tuple[str, bool]:
    """Who holds the lock, in words, and whether that process is about to give it up."""
    try:
        held: dict[str, Any] = json.loads(os.pread(fd, 4096, 0))
        pid, url, ending = int(held["pid"]), str(held["url"]), held.get("ending") is True
    except (ValueError, KeyError, TypeError):
        return "owned by another process, which is just starting", False
    doing = "which is ending" if ending else f"serving {url}" if url.isprintable() and url else "which is just starting"
    return f"owned by pid {pid}, {doing}", ending


def write_lock(fd: int, who: str, url: str, instance: str, *, ending: bool = False) -> None:
    """Write who we are in one write: another process may read it at any time. A full disk does not undo the lock."""
    told = {
        "pid": os.getpid(),
        "start_time": process_start_time(os.getpid()),
        "who": who,
        "url": url,
        "instance": instance,
        "ending": ending,
    }
    text = json.dumps(told).encode()
    with suppress(OSError):
        os.pwrite(fd, text, 0)
        os.ftruncate(fd, len(text))


def _is_plain(state: os.stat_result) -> bool:
    """Whether we may write to the file: a file with a second name belongs to whoever linked it here."""
    return stat.S_ISREG(state.st_mode) and state.st_nlink == 1


def hmac_key(root: int) -> bytes:
    """The stored key; a new key if the file is missing, or if other users could have read or written it."""
    fd = os.open(HMAC_KEY, _OPEN_FILE, 0o600, dir_fd=root)
    try:
        state = os.fstat(fd)
        if not _is_plain(state):
            raise OSError(errno.ESTALE, "its hmac.key is no plain file")
        key = os.pread(fd, _KEY_BYTES + 1, 0)
        if len(key) == _KEY_BYTES and state.st_uid == os.geteuid() and not state.st_mode & 0o077:
            return key
        key = secrets.token_bytes(_KEY_BYTES)
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, 0)
        with suppress(OSError):  # on a full disk the key lives as long as this process; credentials are proved again after the next start
            os.pwrite(fd, key, 0)
    finally:
        os.close(fd)
    return key


INDEX, BROKEN, SHARDS, SAMPLES = "index", "index-broken", "shards", "samples"
_OURS = frozenset({LOCK, HMAC_KEY, INDEX, BROKEN, SHARDS, SAMPLES})
_LOG = re.compile(r"forebay\.log(\.\d+)?")
_KEY = re.compile(r"[0-9a-f]{64}")
_GET_GENERATION = 0x80007601 | struct.calcsize("l") << 16  # FS_IOC_GETVERSION
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_KERNEL_SAYS = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """An identifier of this boot of the machine: bytes written under it are still in the page cache, even if the writer was killed.

    If the kernel does not tell, it is a random word: then every segment is verified before its first use.
    """
    with suppress(OSError, ValueError):
        if found := _KERNEL_SAYS.read_text(encoding="ascii").strip():
            return found
    return f"unknown-{secrets.token_hex(8)}"


@dataclass(frozen=True, slots=True)
class Look:
    """One measurement of the file system. None: it does not say, or has no such limit."""

    free_bytes: int | None
    size_bytes: int
    free_files: int | None
    in_place: bool


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A shard file as found: its size, the bytes allocated for it, the number of its names, and its last change (wall clock).

    ``retouched``: the file's times were set, as copying programs do. A write changes both times together.
    """

    size: int
    allocated: int
    names: int = 1
    changed_at: float = 0.0
    retouched: bool = False


@dataclass(slots=True)
class Scan:
    """The content of the directory: shard files and sample indexes by key, and names that are not ours."""

    files: dict[str, StoredFile] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)  # allocated bytes by key, the oldest first
    unknown: list[str] = field(default_factory=list)


class Directory:
    """An owned cache directory. ``shards``, ``index`` and ``samples`` are open descriptors of its folders."""

    def __init__(self, path: Path, *, root: int, lock: int, shards: int, index: int, samples: int, key: bytes, who: str) -> None:
        self.path = path
        self.shards = shards
        self.index = index
        self.samples = samples
        self.hmac_key = key  # 32 secret bytes that outlive the process: the key of the credential HMACs in rows
        self._who = who
        self._root = root
        self._lock = lock
        self._foreign_bytes = 0

    def __repr__(self) -> str:
        return f"<Directory {self.path}>"

    @classmethod
    def open(cls, path: Path, who: str) -> Directory:
        """Make what is missing and take the lock. Raises ConfigError: one line, and what to do about it."""
        path = Path(os.path.abspath(path))
        with ExitStack() as undo:
            try:
                root = _kept(undo, _open_root(path))
                lock = _kept(undo, take_lock(root, path))
                write_lock(lock, who, "", "")
                shards, index, samples = (_kept(undo, _open_folder(root, path, name)) for name in (SHARDS, INDEX, SAMPLES))
                owned = cls(path, root=root, lock=lock, shards=shards, index=index, samples=samples, key=hmac_key(root), who=who)
            except OSError as error:
                step = "name another with --cache-dir"
                raise ConfigError(f"cache directory {path} cannot be used: {error.strerror}", next_step=step) from error
            undo.pop_all()
            return owned

    def place(self) -> str:
        """An identifier of this very folder of shards. No copy of the folder has the same, at any path.

        It is made of device, inode and the inode's generation, because inode numbers are reused. The device number may change with a
        remount, and the inode on some overlays. Then every segment is verified before its first use, which only costs time.
        """
        state = os.fstat(self.shards)
        return f"{state.st_dev:x}.{state.st_ino:x}.{_generation(self.shards):x}"

    def announce(self, url: str, instance: str) -> None:
        """Write into the lock file where this sidecar serves, for a process that wants the directory."""
        write_lock(self._lock, self._who, url, instance)

    def leaving(self) -> None:
        """Write into the lock file that the directory will be given up soon, so that a process that wants it waits."""
        write_lock(self._lock, self._who, "", "", ending=True)

    def in_place(self) -> bool:
        """Whether the path, the lock file and the shards' folder are still those that we hold. Raises OSError.

        The index folder is not checked: only this program moves the database away, and the index notices its removal.
        """
        try:
            named = ((LOCK, self._lock), (SHARDS, self.shards))
            return os.path.samestat(os.stat(self.path, follow_symlinks=False), os.fstat(self._root)) and all(
                os.path.samestat(os.stat(name, dir_fd=self._root, follow_symlinks=False), os.fstat(fd)) for name, fd in named
            )
        except (FileNotFoundError, NotADirectoryError):
            return False
        except PermissionError:
            return True  # nothing shows that it moved; a directory that cannot be written shows by itself

    def look(self) -> Look:
        """Measure how full the disk is, and check ``in_place``. May hang with the disk. Raises OSError."""
        found = os.fstatvfs(self.shards)  # through the descriptor: the disk that has our bytes, wherever the path leads now
        if found.f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        free = found.f_bavail * found.f_frsize if found.f_blocks else None
        files = found.f_favail if found.f_files else None
        return Look(free, found.f_blocks * found.f_frsize, files, self.in_place())

    def scan(self) -> Scan:
        """List the whole directory once. Raises OSError."""
        found = Scan()
        foreign = 0
        for entry in _entries(self._root):
            if entry.name not in _OURS and not _LOG.fullmatch(entry.name):
                found.unknown.append(entry.name)
                foreign += _tree_bytes(entry.name, self._root) if entry.is_dir(follow_symlinks=False) else 0
        for entry in _entries(self.shards):
            state = entry.stat(follow_symlinks=False)
            if _KEY.fullmatch(entry.name) and is_plain(state):
                retouched = state.st_mtime_ns != state.st_ctime_ns
                found.files[entry.name] = StoredFile(state.st_size, state.st_blocks * 512, state.st_nlink, state.st_ctime, retouched)
            else:
                found.unknown.append(f"{SHARDS}/{entry.name}")
                foreign += state.st_blocks * 512
        foreign += self._scan_samples(found)
        self._foreign_bytes = foreign
        return found

    def _scan_samples(self, found: Scan) -> int:
        """Note the sample indexes. Returns the allocated bytes of other files in their folder."""
        foreign, times = 0, dict[str, float]()
        for entry in _entries(self.samples):
            state = entry.stat(follow_symlinks=False)
            if _KEY.fullmatch(entry.name) and is_plain(state) and state.st_nlink == 1:
                found.samples[entry.name], times[entry.name] = state.st_blocks * 512, state.st_mtime
            else:
                found.unknown.append(f"{SAMPLES}/{entry.name}")
                foreign += state.st_blocks * 512
        found.samples = dict(sorted(found.samples.items(), key=lambda item: times[item[0]]))
        return foreign

    def overhead(self) -> int:
        """Allocated bytes of everything but shard files and sample indexes. Folders that are not ours count as in the last scan."""
        total = self._foreign_bytes + sum(os.fstat(fd).st_blocks for fd in (self._root, self.shards, self.samples)) * 512
        with suppress(FileNotFoundError):  # the directory was removed
            total += sum(_bytes(entry) for entry in _entries(self._root) if not entry.is_dir(follow_symlinks=False))
        return total + sum(_tree_bytes(name, self._root) for name in (INDEX, BROKEN))

    def set_index_aside(self) -> None:
        """Keep the index as ``index-broken`` (the newest one only) and begin an empty one. Raises OSError."""
        with suppress(OSError):
            _empty(BROKEN, self._root)
        try:
            os.rename(INDEX, BROKEN, src_dir_fd=self._root, dst_dir_fd=self._root)
        except FileNotFoundError:
            pass  # nothing to keep
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            os.rename(INDEX, f"{BROKEN}-{secrets.token_hex(4)}", src_dir_fd=self._root, dst_dir_fd=self._root)
        fresh = _open_folder(self._root, self.path, INDEX)
        os.dup2(fresh, self.index, inheritable=False)  # the descriptor's number stays: the database's path contains it
        os.close(fresh)

    def close(self) -> None:
        """Give the directory up."""
        with suppress(OSError):
            os.ftruncate(self._lock, 0)
        for fd in (self.index, self.shards, self.samples, self._lock, self._root):
            os.close(fd)


def _generation(fd: int) -> int:
    """0 if the file system keeps none. Such file systems do not reuse inode numbers (tmpfs), or offer nothing better."""
    try:
        return int.from_bytes(fcntl.ioctl(fd, _GET_GENERATION, bytes(8)), "little")
    except OSError:
        return 0


def _kept(undo: ExitStack, fd: int) -> int:
    undo.callback(os.close, fd)
    return fd


def _open_root(path: Path) -> int:
    for part in (*reversed(path.parents), path):
        with suppress(FileExistsError):
            if not part.exists():
                part.mkdir(mode=0o700)
    if path.is_symlink():
        raise ConfigError(f"cache directory {path} is a symbolic link", next_step=f"name the directory itself: {os.path.realpath(path)}")
    return _own(os.open(path, _OPEN_DIRECTORY), str(path))


def _open_folder(root: int, path: Path, name: str) -> int:
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=root)
    return _own(os.open(name, _OPEN_DIRECTORY, dir_fd=root), f"{path}/{name}", f"chmod go-w {path}/{name}, or remove it")


def _own(fd: int, name: str, next_step: str = "") -> int:
    """``fd`` if only we may write there; otherwise it is closed, and ConfigError raised."""
    state = os.fstat(fd)
    problem = ""
    if state.st_uid != os.geteuid():
        problem = f"belongs to uid {state.st_uid}, not to us (uid {os.geteuid()})"
    elif state.st_mode & 0o022:
        problem = f"may be written by others (mode {stat.S_IMODE(state.st_mode):04o})"
    if not problem:
        return fd
    os.close(fd)
    own = f"name a directory of your own, such as --cache-dir {name}/forebay"
    raise ConfigError(f"cache directory {name} {problem}", next_step=next_step or own)


def _empty(name: str, directory: int) -> None:
    fd = os.open(name, _OPEN_DIRECTORY, dir_fd=directory)
    try:
        for file in os.listdir(fd):
            os.unlink(file, dir_fd=fd)
    finally:
        os.close(fd)


def _entries(directory: int) -> Iterator[os.DirEntry[str]]:
    """The entries of an open directory. It opens another descriptor, because duplicates share one position."""
    fd = os.open(".", _OPEN_DIRECTORY, dir_fd=directory)
    try:
        with os.scandir(fd) as entries:
            yield from entries  # an entry needs ``fd`` for its stat, so it must not be used after the close
    finally:
        os.close(fd)


def _bytes(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_blocks * 512
    except FileNotFoundError:  # SQLite's side files come and go
        return 0


def _tree_bytes(name: str, directory: int) -> int:
    """Allocated bytes of a folder and everything in it. Files that cannot be read count nothing."""
    total = 0
    with suppress(FileNotFoundError):
        for _, _, names, fd in os.fwalk(name, dir_fd=directory):
            total += os.fstat(fd).st_blocks * 512
            for file in names:
                with suppress(OSError):
                    total += os.stat(file, dir_fd=fd, follow_symlinks=False).st_blocks * 512
    return total
