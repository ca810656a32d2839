"""A batch on its way from a worker, and what the worker says beside it: where its data set stands, for a loader whose state can be kept."""

from __future__ import annotations

from typing import Any, Mapping, Optional

__all__ = ["Carried"]


class Carried:
    """``batch``, the batch of ``worker``.

    ``outputs`` of the data set are in it; ``state`` is the data set's after them, or None between two snapshots; ``why`` says why there is
    none to be had. ``taken``: which samples they are, where the data set tells.
    """

    __slots__ = ("batch", "outputs", "state", "taken", "why", "worker")

    def __init__(
        self,
        batch: Any,
        worker: int,
        outputs: int,
        state: Optional[Mapping[str, Any]] = None,
        taken: Any = None,
        why: str = "",
    ) -> None:
        self.batch = batch
        self.worker = worker
        self.outputs = outputs
        self.state = state
        self.taken = taken
        self.why = why

    def __repr__(self) -> str:
        return f"<Carried from worker {self.worker}{', with its state' if self.state is not None else ''}>"

    def __reduce__(self) -> "tuple[Any, ...]":
        taken = None if self.taken is None else tuple(self.taken)  # no class of its own to look up in the training process
        return Carried, (self.batch, self.worker, self.outputs, self.state, taken, self.why)

    def pin_memory(self, device: Any = None) -> Carried:
        """What torch's pinning thread asks of things that it does not know: the same, with its batch in pinned memory."""
        from torch.utils.data._utils import pin_memory as pinning  # noqa: PLC0415  # torch is there: it asks

        pinned: Any = pinning.pin_memory
        return Carried(pinned(self.batch, device), self.worker, self.outputs, self.state, self.taken, self.why)
