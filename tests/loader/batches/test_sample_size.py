"""What counts of a sample: fields, functions, bytes of members; and what is said of a sample that cannot be counted."""

from __future__ import annotations

from typing import Any

import pytest

from forebay_loader.batches.batch_budget import BatchBudget, SampleSize
from forebay_loader.batches.sample_size import SampleSizes, bytes_of

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

NAMED = {"__key__": "a7", "__url__": "https://user:word@host/a.tar?token=secret"}


@pytest.mark.parametrize(
    ("sample", "how", "found"),
    [
        ({"ids": [1, 2, 3]}, "ids", 3),
        ({"ids": numpy.zeros((4, 2))}, "ids", 4),
        ({"ids": torch.zeros(5)}, "ids", 5),
        ({"ids": torch.tensor(6)}, "ids", 6),
        ({"ids": 7}, "ids", 7),
        (("text", b"12345678"), 1, 8),
        ({"txt": "a b c"}, lambda sample: len(sample["txt"].split()), 3),
    ],
)
def test_tokens(sample: Any, how: Any, found: int) -> None:
    """A number, the first axis, the length, or what a function says."""
    assert SampleSizes(BatchBudget(max_tokens=9), how)(sample) == SampleSize(tokens=found)


def test_only_what_is_asked_is_counted() -> None:
    """Frames by their usual field, bytes without the names; each as it was told."""
    sample = {**NAMED, "frames": numpy.zeros((3, 2, 2, 1), "uint8"), "txt": "né", "cls": 4, "json": {"a": [1.5, None]}, "raw": b"12"}
    assert SampleSizes(BatchBudget(max_samples=2), None)(sample) == SampleSize()
    assert SampleSizes(BatchBudget(max_frames=2), None)(sample) == SampleSize(frames=3)
    assert SampleSizes(BatchBudget(max_frames=2), "txt")(sample) == SampleSize(frames=2)
    assert bytes_of(sample) == 12 + 3 + 8 + 16 + 2
    told = {"tokens": "txt", "frames": "raw", "bytes": lambda sample: 5}
    assert SampleSizes(BatchBudget(max_bytes=9, max_frames=9, max_tokens=9), told)(sample) == SampleSize(2, 2, 5)


@pytest.mark.parametrize(
    ("sample", "how", "text"),
    [
        ({**NAMED}, "ids", r"sample a7 of shard https://host/a.tar: its tokens cannot be counted: it has no field 'ids'"),
        ({**NAMED, "ids": None}, "ids", r"its tokens cannot be counted: .*NoneType"),
        ({**NAMED, "ids": -1}, "ids", r"length= says -1 tokens; a number from 0"),
        (("text",), 3, r"a sample without a key: .* no field 3"),
    ],
)
def test_a_sample_that_cannot_be_counted(sample: Any, how: Any, text: str) -> None:
    """It is named, without what may be secret in its URL."""
    with pytest.raises(ValueError, match=text):
        SampleSizes(BatchBudget(max_tokens=9), how)(sample)


def test_unknown_bytes() -> None:
    """Not 0."""
    with pytest.raises(ValueError, match="how many bytes a object has"):
        SampleSizes(BatchBudget(max_bytes=9), None)({**NAMED, "x": object()})


@pytest.mark.parametrize(
    ("how", "text"),
    [(None, "need length="), ({"words": "x"}, "got 'words'"), ({"tokens": 1.5}, "name of a field"), ({"bytes": "x"}, "need length=")],
)
def test_mistaken_lengths(how: Any, text: str) -> None:
    """Refused where they are written."""
    with pytest.raises((TypeError, ValueError), match=text):
        SampleSizes(BatchBudget(max_tokens=9), how)
