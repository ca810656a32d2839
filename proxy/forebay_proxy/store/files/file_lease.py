"""Leases of the kernel's on a shard file: a passed descriptor carries a shared lock until the client's last map of it is gone."""

from __future__ import annotations

import errno
import fcntl
import os

__all__ = ["is_held", "lend"]


def lend(key: str, directory: int, expected: int, length: int) -> int:
    """A read-only descriptor of the file, opened afresh, that carries LOCK_SH: to be passed on. ``expected`` is our own of the same file.

    The name and the inode are in memory because we hold the file open, and a local flock is the kernel's own list: the disk is not asked,
    so this may run on the loop. Raises OSError: ESTALE where another file, or one of another length, has the name; EAGAIN where something
    of it is being removed now.
    """
    fd = os.open(key, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    try:
        state, ours = os.fstat(fd), os.fstat(expected)
        if state.st_ino != ours.st_ino or state.st_dev != ours.st_dev or state.st_size != length:
            raise OSError(errno.ESTALE, "another file took its place")
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BaseException:
        os.close(fd)
        raise
    return fd


def is_held(fd: int) -> bool:
    """Whether a descriptor that was passed, or a map made of one, holds the open file ``fd`` still: the kernel knows, our books do not.

    It may run on the loop, as ``lend``. For the length of this call the lock is ours, and ``file_io`` goes on: only for a file of which
    nobody removes or releases anything now. What cannot be asked (no descriptors left) counts as held; where there is no /proc, as not.
    """
    try:
        own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(own)
    return False
