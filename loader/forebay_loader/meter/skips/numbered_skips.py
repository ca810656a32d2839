"""Skips among samples that are asked for by number, of a map-style data set: no pass begins or ends there."""

from __future__ import annotations

import os
from itertools import repeat
from typing import Any, Dict, Iterator, Optional

from forebay_loader.meter.skips.recorded_handler import Place, RecordedHandler
from forebay_loader.meter.skips.skip_watch import lone_pass

__all__ = ["NumberedSkips"]


class NumberedSkips:
    """Counted by each process for itself, from its first sample on, within the limits of the environment. Pickles, and begins anew."""

    def __init__(self) -> None:
        self._pid = 0
        self._asked: Iterator[None] = iter(())
        self._handler: Optional[RecordedHandler] = None

    def __getstate__(self) -> Dict[str, Any]:
        return {}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        NumberedSkips.__init__(self)

    def asked(self) -> None:
        """For one sample more."""
        if self._pid != os.getpid():
            self._pid, skips = os.getpid(), lone_pass()
            self._asked, self._handler = skips.counting(repeat(None)), RecordedHandler(_raised, skips)
        next(self._asked)

    def replaced(self, error: Exception, place: Place) -> None:
        """Another stands in for the sample that was asked for. Raises ``TooManySkips``."""
        if self._handler is not None:
            self._handler.note(error, place, then="replaced")


def _raised(error: Exception) -> bool:
    raise error
