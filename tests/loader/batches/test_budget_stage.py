"""fb.batched as a stage: in any pipeline, the same batches each time, and what it says of a sample over the budget."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

import pytest

import forebay_loader as fb

wds = pytest.importorskip("webdataset")
pytestmark = pytest.mark.webdataset

LENGTHS = (3, 1, 9, 2, 12, 5, 4, 4, 1, 30, 2)


def samples(numbers: Iterable[int] = range(len(LENGTHS))) -> list[dict[str, Any]]:
    return [{"__key__": f"k{n}", "__url__": f"https://host/{n % 2}.tar?sig=1", "ids": [n] * LENGTHS[n]} for n in numbers]


def keys(batches: Iterable[list[dict[str, Any]]]) -> list[list[str]]:
    return [[sample["__key__"] for sample in batch] for batch in batches]


def pipeline(rows: list[Any], *stages: Any) -> Any:
    return wds.DataPipeline(lambda: iter(rows), *stages)


def stage(**how: Any) -> Any:
    return fb.batched(**{"max_tokens": 12, "buckets": (4, 8), "length": "ids", "collate": None, **how})


def test_in_a_pipeline_of_webdatasets() -> None:
    """Every sample once, by its bucket, in each pass anew; the stage goes to workers through pickle."""
    made = pipeline(samples(), pickle.loads(pickle.dumps(stage())))
    found = keys(made)
    assert sorted(key for batch in found for key in batch) == sorted(f"k{n}" for n in range(len(LENGTHS)))
    assert ["k0", "k1", "k3"] in found
    assert keys(made) == found


def test_collation_is_webdatasets_unless_said_otherwise() -> None:
    """Of dicts too, which 0.2.86's own does not take."""
    rows = [{"__key__": "a", "cls": 1}, {"__key__": "b", "cls": 2}]
    (batch,) = pipeline(rows, fb.batched(max_samples=2))
    assert (batch["__key__"], batch["cls"].tolist()) == (["a", "b"], [1, 2])
    ((names, classes),) = pipeline([("a", 1), ("b", 2)], fb.batched(max_samples=2))
    assert (names, classes.tolist()) == (["a", "b"], [1, 2])


def test_what_is_left_may_be_left_out() -> None:
    """partial=False, as webdataset's."""
    assert keys(pipeline(samples(range(5)), stage(max_samples=2, partial=False))) == [["k0", "k1"], ["k2"], ["k4"]]


def test_a_sample_over_the_budget_may_be_an_error() -> None:
    """It is named, with both numbers and the next step."""
    text = r"sample k9 of shard https://host/1.tar: a batch of it alone has 30 tokens where 12 are allowed. oversize='alone'"
    with pytest.raises(ValueError, match=text):
        list(pipeline(samples(), stage(oversize="raise")))


def test_a_data_set_of_another_budget_does_not_resume() -> None:
    """The state of fb.WebDataset knows the stage and its numbers: other budgets make other batches."""
    resume = pytest.importorskip("forebay_loader.dataset.resume")
    assert resume._sized(stage()) != resume._sized(stage(buckets=(4, 9)))
    assert resume._sized(stage()) == resume._sized(stage())


def test_batches_of_one_picture_size() -> None:
    """Clips by H x W x C, padded along T alone; pictures by their whole shape, or by what a function says."""
    numpy = pytest.importorskip("numpy")
    sizes = [(2, 4, 6, 3), (3, 6, 4, 3), (1, 4, 6, 3), (2, 6, 4, 3), (4, 4, 6, 3)]
    clips = [{"__key__": f"k{n}", "frames": numpy.full(size, n, "u1")} for n, size in enumerate(sizes)]
    batches = [*pipeline(clips, fb.batched(max_frames=9, shape="frames", collate=fb.padded("frames")))]
    assert [batch["frames"].shape for batch in batches] == [(2, 2, 4, 6, 3), (2, 3, 6, 4, 3), (1, 4, 4, 6, 3)]
    assert [batch["__key__"] for batch in batches] == [["k0", "k2"], ["k1", "k3"], ["k4"]]
    by_shape = fb.batched(max_samples=9, shape=lambda sample: sample["frames"].shape[1], collate=None)
    assert keys(pipeline(clips, by_shape)) == [["k0", "k2", "k4"], ["k1", "k3"]]
    pictures = [{**one, "png": one["frames"][0]} for one in clips]
    assert keys(pipeline(pictures, fb.batched(max_samples=9, shape="png", collate=None))) == [["k0", "k2", "k4"], ["k1", "k3"]]
    assert keys(pipeline(clips, fb.batched(max_samples=9, shape="frames", max_waiting=1, collate=None))) == [[f"k{n}"] for n in range(5)]


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ("png", "k0 of shard https://host/0.tar: its shape cannot be told: it has no field 'png'"),
        ("ids", "shape="),
        (lambda _: [], "shape="),
    ],
)
def test_a_shape_that_cannot_be_told(shape: Any, text: str) -> None:
    """The sample is named, and what to give instead."""
    with pytest.raises(ValueError, match=text):
        list(pipeline(samples(), stage(shape=shape)))
    with pytest.raises(TypeError, match="shape takes"):
        fb.batched(max_samples=1, shape=1.5)  # type: ignore[arg-type]
