"""One call of ``next`` of a loader that is made around torch's: it may ask that several times, and do more behind it."""

from __future__ import annotations

from typing import Tuple

from forebay_loader.meter.clock.books import StallBooks

__all__ = ["LoaderCall"]


class LoaderCall:
    """Called at ``start_ns``; ``inner_ns`` of its time is torch's loader's, and booked there. ``books`` are those of process and loader."""

    def __init__(self, books: Tuple[StallBooks, ...], start_ns: int) -> None:
        self.books = books
        self.start_ns = start_ns
        self.inner_ns = 0

    def rest_ns(self, now_ns: int) -> int:
        """What it has taken until now besides."""
        return max(0, now_ns - self.start_ns - self.inner_ns)
