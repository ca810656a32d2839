"""What a DataLoader's workers go on from, and which of them each is: read by a worker when it starts.

torch begins every iteration with its worker 0. Where another one's turn was, worker i plays the role of worker ``(next + i) % workers``
for that iteration, so that batches come in the order they would have come in.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional

from forebay_loader.identity.world import Worker, play
from forebay_loader.loading.loader_start import LoaderStart

__all__ = ["Handover"]


class Handover:
    """For the ``workers`` of one DataLoader; 0 where the training process reads itself. Empty but while an iteration goes on."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._start: Optional[LoaderStart] = None

    def fill(self, start: LoaderStart) -> None:
        """The workers that start next go on from there."""
        self._start = start

    def clear(self) -> None:
        """They have started: the next ones begin an epoch."""
        self._start = None

    def to_worker(self) -> None:
        """In a worker that has started, before its first iteration. Raises as ``to`` does."""
        if self._start is None:
            return
        from torch.utils.data import get_worker_info  # noqa: PLC0415  # in a worker it is there

        info: Any = get_worker_info()
        role = (self._start.next + int(info.id)) % self.workers
        play(Worker(role, self.workers))
        self.to(info.dataset, role)

    def to(self, dataset: Any, role: int = 0) -> None:
        """Let ``dataset`` go on as worker ``role``. Raises ``ValueError`` where it is not what the state was taken of."""
        start = self._start
        if start is None:
            return
        state = next((_resumed(one) for one in start.states if one["worker"] == role), start.merged)
        if state is not None:
            dataset.load_state_dict(state)


def _resumed(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A worker's state, and how many outputs after it were handed out: they are drawn again and left out."""
    return {**entry["state"], "drop": int(entry["outputs"])}
