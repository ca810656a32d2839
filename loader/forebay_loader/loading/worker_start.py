"""How a loader starts its workers: by the requested start method, or by fork if the pipeline cannot be pickled.

Workers get the openers of their parent, and the state to continue from.
"""

from __future__ import annotations

import io
from multiprocessing import context, get_start_method, reduction
from typing import Any, Callable, Optional

from forebay_loader.base.notices import notice_once
from forebay_loader.dataset.webdataset_compat import picklable_length
from forebay_loader.identity.world import Worker, World, play
from forebay_loader.loading.loader_start import LoaderStart
from forebay_loader.resume.state_parts import sealed
from forebay_loader.stream.webdataset_openers import enable, enabled

__all__ = ["Handover", "WorkerInit", "start_method"]


class Handover:
    """Passes a state to the ``workers`` of one DataLoader; 0 if the training process reads itself. It is empty
    except while workers start.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._start: Optional[LoaderStart] = None

    def fill(self, start: LoaderStart) -> None:
        """The workers that start next continue from ``start``."""
        self._start = start

    def clear(self) -> None:
        """The workers have started. The next ones begin an epoch."""
        self._start = None

    def to_worker(self) -> None:
        """Load the state in a worker that has started, before its first iteration. Raises as ``to`` does."""
        if self._start is None:
            return
        from torch.utils.data import get_worker_info  # noqa: PLC0415  # a worker has imported torch

        info: Any = get_worker_info()
        role = (self._start.next + int(info.id)) % self.workers
        play(Worker(role, self.workers))
        self.to(info.dataset, role)

    def to(self, dataset: Any, role: int = 0) -> None:
        """Make ``dataset`` continue as worker ``role``. Raises ``ValueError`` if the state is of another data set."""
        start = self._start
        if start is None:
            return
        # The worker's state, and how many outputs after it were handed out: the worker makes these again and drops them.
        state = next((sealed({**one["state"], "drop": one["outputs"]}) for one in start.states if one["worker"] == role), start.merged)
        if state is not None:
            dataset.load_state_dict(state)


class WorkerInit:
    """``worker_init_fn`` of every worker. It enables Forebay if the parent has done so, calls the user's function, and then loads the
    state.
    """

    def __init__(self, own: Optional[Callable[[int], Any]], world: World, handover: Optional[Handover] = None) -> None:
        self._own = own
        self._world = world
        self._handover = handover
        self._limits = enabled()

    def __call__(self, worker_id: int) -> None:
        self._world.tell_worker()  # for webdataset's own splitters
        if self._limits is not None:
            enable(limits=self._limits)
        if self._own is not None:
            self._own(worker_id)
        if self._handover is not None:
            self._handover.to_worker()

    def __getstate__(self) -> dict[str, Any]:
        return {"_own": self._own, "_handover": self._handover, "_world": self._world.resolved(), "_limits": enabled()}


def start_method(dataset: Any, *others: Any) -> Optional[str]:
    """The start method to request if the user named none: None for Python's own; "fork" if Python's own must pickle and cannot."""
    usual = get_start_method(allow_none=False)
    picklable_length(dataset)
    if usual == "fork":
        return None
    reason = _why_not_pickled((dataset, *others))
    if not reason:
        return None
    decided = "its workers are forked, unless multiprocessing_context= says otherwise"
    text = f"this pipeline cannot be pickled ({reason}), as {usual} needs: {decided}"
    notice_once("fork", text)
    return "fork"


def _why_not_pickled(what: Any) -> str:
    """Why ``what`` cannot be pickled for a new process; "" if it can. The pickled bytes are thrown away."""
    before = context.get_spawning_popen()
    context.set_spawning_popen(_DryRun())  # type: ignore[arg-type]
    try:
        reduction.ForkingPickler(_NoLoader()).dump(what)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    finally:
        context.set_spawning_popen(before)
    return ""


class _NoLoader(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return len(data)


class _DryRun:
    """Stands in for a process that is being started and would get file descriptors."""

    DupFd = int

    @staticmethod
    def duplicate_for_child(descriptor: int) -> int:
        return descriptor
