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

from forebay_proxy.errors import ConfigError

__all__ = ["HMAC_KEY", "LOCK", "hmac_key", "take_lock", "write_lock"]

LOCK, HMAC_KEY = "lock", "hmac.key"
_OPEN_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
_KEY_BYTES = 32


def take_lock(root: int, path: Path) -> int:
    """The lock file of the directory ``root``, open and locked. Raises ConfigError naming the owner if there is one; OSError."""
    fd = os.open(LOCK, _OPEN_FILE, 0o600, dir_fd=root)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        state, named = os.fstat(fd), os.stat(LOCK, dir_fd=root, follow_symlinks=False)
        if not stat.S_ISREG(state.st_mode) or not os.path.samestat(state, named):
            raise OSError(errno.ESTALE, "its lock file is being replaced")
    except BlockingIOError:
        owner = _read_lock(fd)
        os.close(fd)
        raise ConfigError(f"cache directory {path} is {owner}", next_step="use that sidecar, or name another with --cache-dir") from None
    except OSError:
        os.close(fd)
        raise
    return fd


def _read_lock(fd: int) -> str:
    """Who holds the lock, in words."""
    try:
        held: dict[str, Any] = json.loads(os.pread(fd, 4096, 0))
        pid, url = int(held["pid"]), str(held["url"])
    except (ValueError, KeyError, TypeError):
        return "owned by another process, which is just starting"
    return f"owned by pid {pid}, {f'serving {url}' if url.isprintable() and url else 'which is just starting'}"


def write_lock(fd: int, who: str, url: str, instance: str) -> None:
    """Say who we are, in one write: a second owner-to-be may read at any time. A disk too full for it does not undo the lock."""
    text = json.dumps({"pid": os.getpid(), "start_time": _start_time(), "who": who, "url": url, "instance": instance}).encode()
    with suppress(OSError):
        os.pwrite(fd, text, 0)
        os.ftruncate(fd, len(text))


def _start_time() -> int:
    """Field 22 of our stat line, in clock ticks since boot: tells a reused pid apart."""
    return int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])


def hmac_key(root: int) -> bytes:
    """The stored key; a new one if there is none, or if others could have read or written it."""
    fd = os.open(HMAC_KEY, _OPEN_FILE, 0o600, dir_fd=root)
    try:
        state, key = os.fstat(fd), os.pread(fd, _KEY_BYTES + 1, 0)
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
