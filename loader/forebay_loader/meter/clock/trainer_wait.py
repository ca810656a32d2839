"""That the trainer waits for a batch now, and for whose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from forebay_loader.meter.page import PageView

__all__ = ["TrainerWait"]


@dataclass(frozen=True)
class TrainerWait:
    """The trainer is inside ``next(loader)`` since ``since_ns`` (of ``CLOCK_MONOTONIC``), for the batch of ``worker``.

    ``worker`` is -1 where this process makes its batches itself, or none is due; ``pid`` is its process, 0 where not known; ``page`` what
    that worker says of itself, None where it says nothing.
    """

    since_ns: int
    worker: int
    pid: int = 0
    page: Optional[PageView] = None
