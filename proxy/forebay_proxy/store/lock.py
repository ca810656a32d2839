"""Who owns a cache directory: its lock file, and its secret. Blocking; owns nothing itself.

The lock is ``flock``: the kernel gives it back when its holder dies, however it dies. The file's content only tells people who it is.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from forebay_proxy.core.errors import ConfigError

__all__ = ["HMAC_KEY", "LOCK", "DirectoryOwned", "hmac_key", "take_lock", "write_lock"]

LOCK, HMAC_KEY = "lock", "hmac.key"
_OPEN_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
_KEY_BYTES = 32


class DirectoryOwned(ConfigError):
    """Another process holds the cache directory. ``ending``: it drains, and gives it back within seconds."""

    def __init__(self, path: Path, owner: str, *, ending: bool) -> None:
        super().__init__(f"cache directory {path} is {owner}", next_step="use that sidecar, or name another with --cache-dir")
        self.ending = ending


def take_lock(root: int, path: Path) -> int:
    """The lock file of the directory ``root``, open and locked. Raises ConfigError naming the owner if there is one; OSError."""
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
    """Who holds the lock, in words, and whether it is about to let go."""
    try:
        held: dict[str, Any] = json.loads(os.pread(fd, 4096, 0))
        pid, url, ending = int(held["pid"]), str(held["url"]), held.get("ending") is True
    except (ValueError, KeyError, TypeError):
        return "owned by another process, which is just starting", False
    doing = "which is ending" if ending else f"serving {url}" if url.isprintable() and url else "which is just starting"
    return f"owned by pid {pid}, {doing}", ending


def write_lock(fd: int, who: str, url: str, instance: str, *, ending: bool = False) -> None:
    """Say who we are, in one write: a second owner-to-be may read at any time. A disk too full for it does not undo the lock."""
    told = {"pid": os.getpid(), "start_time": _start_time(), "who": who, "url": url, "instance": instance, "ending": ending}
    text = json.dumps(told).encode()
    with suppress(OSError):
        os.pwrite(fd, text, 0)
        os.ftruncate(fd, len(text))


def _is_plain(state: os.stat_result) -> bool:
    """Whether it may be written to: what has a second name is somebody's, whoever linked it here."""
    return stat.S_ISREG(state.st_mode) and state.st_nlink == 1


def _start_time() -> int:
    """Field 22 of our stat line, in clock ticks since boot: tells a reused pid apart."""
    return int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])


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
        with suppress(OSError):  # on a full disk it lives as long as this process; the next one proves its credentials anew
            os.pwrite(fd, key, 0)
    finally:
        os.close(fd)
    return key
