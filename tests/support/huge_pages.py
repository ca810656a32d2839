"""A process whose memory is cheap to fork: of huge pages.

A fork copies an entry of the page table for each page, and the end of the child takes them away again: with the 600 MB of a worker of tests
50 ms of a processor, of which a tenth is left where pages are of 2 MiB. A page that is written then is copied as a small one, as before.
"""

from __future__ import annotations

import ctypes

__all__ = ["collapse"]

_COLLAPSE = 25  # MADV_COLLAPSE, of Linux 6.1
_HUGE = 2 << 20


def collapse() -> None:
    """Gather what this process has written into huge pages, as far as the kernel can; where it knows no such thing, nothing happens."""
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    with open("/proc/self/maps", encoding="utf-8") as maps:
        places = [line.split() for line in maps]
    for span, rights, *_, inode in (place[:5] for place in places):
        if rights.startswith("rw") and inode == "0":
            first, end = (int(each, 16) for each in span.split("-"))
            # one by one: behind one that cannot be, the rest would not be tried
            for address in range(-(-first // _HUGE) * _HUGE, end - _HUGE + 1, _HUGE):
                advise(address, _HUGE, _COLLAPSE)
