"""Which user ids name one user. In a user namespace that does not map every user, one number stands for all unmapped users.

The kernel shows an unmapped user as its overflow uid (65534 unless an administrator changed it), which is also the usual number of
``nobody``. Where the map is whole that uid is a user like any other.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

__all__ = ["anybodys_uid"]

_MAP, _OVERFLOW = Path("/proc/self/uid_map"), Path("/proc/sys/kernel/overflowuid")
_ALL = 2**32 - 1  # 0 to 4294967294: the last number means "no user"
_USUAL = 65534


def anybodys_uid(uid_map: Path = _MAP, overflow: Path = _OVERFLOW) -> int | None:
    """The uid that may be anybody's in this user namespace; None where each user has one of their own."""
    if _is_whole(uid_map):
        return None
    with suppress(OSError, ValueError):
        return int(overflow.read_text(encoding="ascii"))
    return _USUAL


def _is_whole(uid_map: Path) -> bool:
    """Whether every user has a number here. A namespace inside another can map no more than that one does, so the sum tells."""
    try:
        # Lines of: first uid inside, first uid outside, how many.
        return sum(int(line.split()[2]) for line in uid_map.read_text(encoding="ascii").splitlines()) >= _ALL
    except FileNotFoundError:
        return uid_map.parent.is_dir()  # a kernel without user namespaces; without /proc nothing is known
    except (OSError, ValueError, IndexError):
        return False
