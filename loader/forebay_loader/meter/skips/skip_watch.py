"""How much of a data set may be skipped, and where all workers of a rank count it; one for each data set, pickled with it."""

from __future__ import annotations

import os
from typing import Any, Optional, Union

from forebay_loader.identity.world import World, here_worker
from forebay_loader.meter.skips.counts import SkipLimits
from forebay_loader.meter.skips.skip_pass import SkipPass, SkipScope
from forebay_loader.meter.skips.skip_slots import LoneRow, SkipSlots

__all__ = ["SkipWatch", "lone_pass"]

SHARE, IN_A_ROW = "FOREBAY_MAX_SKIPPED", "FOREBAY_MAX_CONSECUTIVE_SKIPS"


class SkipWatch:
    """``max_skipped`` and ``max_consecutive_skips`` as ``fb.WebDataset`` takes them; what is None is asked of the environment."""

    def __init__(self, max_skipped: Union[int, float, None] = None, max_consecutive_skips: Optional[int] = None) -> None:
        SkipLimits.of(max_skipped, max_consecutive_skips)
        self._asked = max_skipped, max_consecutive_skips
        self._slots = SkipSlots()

    def __repr__(self) -> str:
        return f"<SkipWatch {_limits(*self._asked)}>"

    def begin(self, epoch: int, world: World) -> SkipPass:
        """An iteration of ``epoch`` begins in this process. Raises ``ValueError`` for a limit in the environment that is none."""
        worker = here_worker()
        scope = SkipScope(epoch, world.rank, world.size, worker.id, worker.workers)
        return SkipPass(_limits(*self._asked), scope, self._slots.take(epoch, worker.id, worker.workers))


def lone_pass(*, behind: bool = False) -> SkipPass:
    """A pass of a pipeline that is not ours: it counts in this process alone, within the limits of the environment.

    ``behind``: of what a ``DataLoader`` gives.
    """
    return SkipPass(_limits(), SkipScope.alone()._replace(behind=behind), LoneRow())


def _limits(most: Union[int, float, None] = None, in_a_row: Optional[int] = None) -> SkipLimits:
    most = _number(SHARE, float) if most is None else most
    return SkipLimits.of(most, _number(IN_A_ROW, int) if in_a_row is None else in_a_row)


def _number(name: str, kind: Any) -> Any:
    text = os.environ.get(name, "")
    if not text:
        return None
    try:
        return int(text) if text.isascii() and text.isdigit() else kind(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}, which is no number") from None
