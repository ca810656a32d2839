"""How many samples a batch holds, for all the kinds of batches there are."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from typing import Any

import pytest

from forebay_loader.meter.clock.batch_samples import samples_in


class Rows:
    """As far as it is asked: a tensor."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape


COLLATED = [
    (Rows(32, 3, 224, 224), 32),
    ([Rows(32, 3), Rows(32)], 32),
    ({"jpg": Rows(16, 3), "txt": ["a"] * 16}, 16),
    ({"txt": ["a"] * 5}, 5),
    (UserDict({"jpg": Rows(7)}), 7),
    ([{"a": 1}, {"a": 2}, {"a": 3}], 3),  # a collation that hands on the samples
    (["a", "b"], 2),
    (Rows(), 1),
    ([], 1),
    ({}, 1),
    (object(), 1),
]
HANDED_ON = [
    ((Rows(8, 3), [1] * 8), 8),
    (OrderedDict(jpg=Rows(8, 3), txt=["a"] * 8), 8),
    ({"jpg": Rows(3, 224, 224), "cls": 7}, 1),  # one sample
    ({"jpg": Rows(3, 224, 224), "mask": Rows(1, 224, 224)}, 1),
    (Rows(9, 2), 9),
    ({"__key__": "a"}, 1),
    ([], 1),
    (7, 1),
]


@pytest.mark.parametrize(("batch", "samples"), COLLATED)
def test_of_what_the_loader_collated(batch: Any, samples: int) -> None:
    assert samples_in(batch, batched=True) == samples


@pytest.mark.parametrize(("batch", "samples"), HANDED_ON)
def test_of_what_the_data_set_batched(batch: Any, samples: int) -> None:
    """A batch is what has entries, all of one length."""
    assert samples_in(batch, batched=False) == samples
