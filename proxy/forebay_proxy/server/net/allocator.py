"""Keeps freed memory for the next body buffer instead of giving it to the kernel and asking for it again.

Buffers of 128 KiB to 1 MiB are glibc's border case: each may be mapped afresh and unmapped at its end, and every first touch of a page is
a fault, which is dear on a virtual machine. What this gains was not measured by itself; all published figures were taken with it. The
budget of ``buffers.py`` bounds what is kept.
"""

from __future__ import annotations

import ctypes

__all__ = ["keep_buffers"]

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_KEPT_BYTES = 64 * 2**20  # the body budget: what was needed once will be needed again


def keep_buffers() -> bool:
    """Tell glibc's malloc (mallopt(3)); False with another C library, where nothing is changed."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, 32 * 2**20)) and bool(mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES))
