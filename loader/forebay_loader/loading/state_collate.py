"""The collation of a loader whose state can be kept: each batch leaves its worker with what the data set says of it.

torch hands a worker its data set and this collation together, so both sides speak of one object, forked and spawned alike. The state is
taken where a batch has just been drawn: nothing of the next one is held yet.
"""

from __future__ import annotations

from typing import Any, Callable

from forebay_loader.base.carrier import Carried
from forebay_loader.base.errors import NotResumable
from forebay_loader.identity.world import loader_worker

__all__ = ["StateCollate"]


class StateCollate:
    """``collate`` for batches of ``dataset``; ``batched``: of lists of its outputs.

    The state goes with the first batch of an iteration, and then with every ``every``-th.
    """

    def __init__(self, collate: Callable[[Any], Any], dataset: Any, every: int, *, batched: bool) -> None:
        self._collate = collate
        self._dataset = dataset
        self._every = every
        self._batched = batched
        self._place: Any = None  # of the iteration that is being counted
        self._turn = 0  # its pass
        self._made = 0  # batches of that
        self._worker = 0
        dataset.taken()  # from the first call on it is noted

    def __repr__(self) -> str:
        return f"<StateCollate of {self._collate!r}, a state every {self._every} batches>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_place": None, "_made": 0}

    def __call__(self, data: Any) -> Carried:
        outputs = len(data) if self._batched else 1
        batch = self._collate(data)
        place = self._dataset.place
        if place is not self._place or place.turn != self._turn:  # what is taken is told by pass
            self._place, self._turn, self._made, self._worker = place, place.turn, 0, loader_worker().id
        self._made += 1
        taken = place.look()
        if self._made != 1 and self._made % self._every:
            return Carried(batch, self._worker, outputs, None, taken)
        try:
            return Carried(batch, self._worker, outputs, place.state(), taken)
        except NotResumable as error:
            return Carried(batch, self._worker, outputs, None, taken, str(error))
