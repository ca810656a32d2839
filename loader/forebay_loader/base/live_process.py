"""Whether a process of this machine still lives."""

from __future__ import annotations

import os

__all__ = ["lives"]


def lives(pid: int) -> bool:
    """Also where it is somebody else's, or has ended and its parent has not asked for it yet."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is somebody's
        return True
    return True
