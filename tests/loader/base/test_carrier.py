"""A batch that carries its worker's word goes where torch sends batches: through pickle, and into pinned memory."""

from __future__ import annotations

import pickle
from array import array

import pytest

from forebay_loader.base.carrier import Carried
from forebay_loader.meter.clock.batch_samples import samples_in

torch = pytest.importorskip("torch")


class Pinnable:
    """Stands for a tensor, which only a machine with an accelerator pins."""

    pinned = False

    def pin_memory(self) -> Pinnable:
        self.pinned = True
        return self


def test_through_pickle() -> None:
    """Everything it says arrives, and its samples are those of the batch."""
    there = Carried([1, 2, 3], 2, 1, {"epoch": 1}, (array("i", [4]), [(0, 0, 0)]), "why")
    here = pickle.loads(pickle.dumps(there))
    assert [getattr(here, name) for name in Carried.__slots__] == [getattr(there, name) for name in Carried.__slots__]
    assert samples_in(here, batched=True) == samples_in([1, 2, 3], batched=True) == 3


def test_into_pinned_memory() -> None:
    """torch's pinning finds the batch in it, and the rest stays."""
    pinning = pytest.importorskip("torch.utils.data._utils.pin_memory")
    found = pinning.pin_memory(Carried([Pinnable()], 1, 2, {"epoch": 0}))
    assert (found.batch[0].pinned, found.worker, found.outputs, found.state) == (True, 1, 2, {"epoch": 0})
