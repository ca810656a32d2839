"""Batches put together: every kind that webdataset and torch collate, and no guess where two are possible."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from forebay_loader.batches.pad import padded
from forebay_loader.loading.batch_ladder import BatchJoin

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

SIZE = 4


class Columns(NamedTuple):
    image: Any
    name: Any


def plain(value: Any) -> Any:
    """With arrays and tensors as lists, so that it can be compared."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def batch(first: int, count: int, kind: str) -> Any:
    numbers = list(range(first, first + count))
    names = [f"s{n}" for n in numbers]
    return {
        "tensor": torch.tensor(numbers),
        "array": numpy.array(numbers),
        "tuple": (torch.tensor(numbers), names, numpy.array(numbers)),
        "list": [torch.tensor(numbers), tuple(names)],
        "named": Columns(torch.tensor(numbers), names),
        "dict": {"x": torch.tensor(numbers), "in": {"y": numpy.array(numbers)}, "names": names},
        "lists of lists": (torch.tensor(numbers), [[n, n + 1, n + 2, n + 3] for n in numbers]),
        "samples": [{"x": torch.zeros(3) + n} for n in numbers],
        "texts": names,
    }[kind]


KINDS = ["tensor", "array", "tuple", "list", "named", "dict", "lists of lists", "samples", "texts"]


@pytest.mark.parametrize("kind", KINDS)
def test_as_one_large_batch(kind: str) -> None:
    """Two and a half batches are what one batch of ten would have been, of the same types."""
    join, parts = BatchJoin(SIZE), [batch(0, 4, kind), batch(4, 4, kind), batch(8, 2, kind)]
    made, whole = join(parts), batch(0, 10, kind)
    assert plain(made) == plain(whole)
    assert type(made) is type(whole)


def test_the_order_of_looks_does_not_matter() -> None:
    """A batch of a worker that had no more tells nothing; the next one does."""
    join = BatchJoin(SIZE)
    join.look(batch(0, 2, "tuple"))
    assert plain(join([batch(0, 2, "tuple"), batch(2, 4, "tuple")])) == plain(batch(0, 6, "tuple"))
    with pytest.raises(ValueError, match="no batch had 4 samples"):
        BatchJoin(SIZE)([batch(0, 2, "tuple"), batch(2, 2, "tuple")])


@pytest.mark.parametrize(
    ("odd", "text"),
    [
        (torch.zeros(8, 2), r"one of them has a Tensor of shape \(8, 2\)"),
        ({"x": torch.zeros(4), "n": 3}, "one of them has a int"),
        ([["a"] * 4] * 4, "samples or columns"),
    ],
)
def test_what_cannot_be_told(odd: Any, text: str) -> None:
    """Refused at the first batch, long before one is put together."""
    with pytest.raises(ValueError, match=text):
        BatchJoin(SIZE).look(odd)


def test_batches_padded_to_lengths_of_their_own() -> None:
    """They are named, with what to do: torch's own words are of a dimension."""
    with pytest.raises(ValueError, match=r"these 2 do not fit: .* pad all to one length"):
        BatchJoin(SIZE)([torch.zeros(4, 7), torch.zeros(4, 9)])


@pytest.mark.parametrize("make", [torch.tensor, numpy.array], ids=["tensor", "array"])
@pytest.mark.parametrize("kind", [dict, tuple])
def test_what_fb_padded_made_is_padded_on(make: Any, kind: Any) -> None:
    """As one batch of all samples: with the value that fills, and False in the mask."""
    samples = [kind(enumerate([make([n] * (n + 1)), make(n)])) if kind is dict else (make([n] * (n + 1)), make(n)) for n in range(8)]
    pad = padded(0, value=-1, edges=(3, 6))
    made = BatchJoin(SIZE, pad)([pad(samples[:4]), pad(samples[4:])])
    assert plain(made) == plain(pad(samples))
    assert [type(each) for each in (made.values() if kind is dict else made)] == [type(make([0]))] * 3


def test_only_what_fb_padded_made_is_padded_on() -> None:
    """A batch without the mask was made otherwise: what fills it nobody knows."""
    parts = [(torch.zeros(4, 7), torch.zeros(4)), (torch.zeros(4, 9), torch.zeros(4))]
    with pytest.raises(ValueError, match=r"these 2 do not fit: .* let fb\.padded do it"):
        BatchJoin(SIZE, padded(0))(parts)


@pytest.mark.parametrize("longest", [2, 3])
def test_parts_of_different_types(longest: int) -> None:
    """Nothing behind the point is lost, padded on or not."""
    pad = padded("x")
    parts = [pad([{"x": torch.tensor([1, 2])}] * 2), pad([{"x": torch.full((longest,), 0.25)}] * 2)]
    assert BatchJoin(2, pad)(parts)["x"][2:, :2].tolist() == [[0.25, 0.25]] * 2
