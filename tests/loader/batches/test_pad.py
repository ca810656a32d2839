"""fb.padded: one array for fields of different lengths, and a mask of what is real."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import forebay_loader as fb
from forebay_loader.loading.batch_ladder import _joined

pytest.importorskip("webdataset")
numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.webdataset


def test_dicts() -> None:
    """The field, its mask beside it, and the others as webdataset collates them."""
    rows = [{"__key__": "a", "ids": [1, 2, 3], "cls": 0}, {"__key__": "b", "ids": [4], "cls": 1}]
    batch = fb.padded("ids", value=9)(rows)
    assert batch["ids"].tolist() == [[1, 2, 3], [4, 9, 9]]
    assert batch["ids_mask"].tolist() == [[True, True, True], [True, False, False]]
    assert (batch["__key__"], batch["cls"].tolist()) == (["a", "b"], [0, 1])


def test_tuples_of_tensors() -> None:
    """Tensors stay tensors of their type; the masks follow behind."""
    rows = [(torch.ones(2, 3, dtype=torch.float16), "a", torch.arange(1)), (torch.ones(4, 3, dtype=torch.float16), "b", torch.arange(2))]
    made, names, counts, mask, other = fb.padded(0, 2, value={2: -1})(rows)
    assert (tuple(made.shape), made.dtype, float(made.sum())) == ((2, 4, 3), torch.float16, 18.0)
    assert (mask.tolist(), mask.dtype) == ([[True, True, False, False], [True] * 4], torch.bool)
    assert (names, counts.tolist(), other.tolist()) == (["a", "b"], [[0, -1], [0, 1]], [[True, False], [True, True]])


@pytest.mark.parametrize(("longest", "length"), [(3, 4), (4, 4), (7, 8), (9, 9)])
def test_edges_make_few_shapes(longest: int, length: int) -> None:
    """The first that the longest fits into; beyond the last, its own length."""
    rows = [{"x": numpy.zeros(1)}, {"x": numpy.zeros(longest)}]
    assert fb.padded("x", edges=(8, 4))(rows)["x"].shape == (2, length)


@given(
    st.lists(st.tuples(*[st.integers(0, 5)] * 3), min_size=1, max_size=4),
    st.integers(1, 3),
    st.sampled_from([(), (3,), (2, 4)]),
    st.booleans(),
)
def test_several_axes(shapes: list[tuple[int, int, int]], axes: int, edges: tuple[int, ...], tensors: bool) -> None:
    """Each sample lies at the front of its row, whole; all else is the value; the masks together tell which is which; a ladder's join of
    two batches is the batch of all samples."""
    shapes = [(*shape[:axes], *shapes[0][axes:]) for shape in shapes]
    make = torch.tensor if tensors else numpy.array
    rows = [
        {"x": make(numpy.full((*shape, 2), 1 + at).tolist(), dtype=torch.int32 if tensors else "i4").reshape(*shape, 2)}
        for at, shape in enumerate(shapes)
    ]
    pad = fb.padded("x", value=-1, axes=axes, edges={0: edges, axes - 1: edges})
    batch = pad(rows)
    masks = [batch[f"x_mask{axis or ''}"] for axis in range(axes)]
    real = numpy.ones(tuple(batch["x"].shape), bool)
    for axis, mask in enumerate(masks):
        real &= numpy.asarray(mask).reshape(len(rows), *(-1 if at == axis else 1 for at in range(4)))
    found = numpy.asarray(batch["x"])
    assert (found[~real] == -1).all()
    for at, (shape, row) in enumerate(zip(shapes, rows, strict=True)):
        assert found[at][real[at]].tolist() == numpy.asarray(row["x"]).reshape(-1).tolist()
        assert [int(mask[at].sum()) for mask in masks] == [*shape[:axes]]
        longest = max(shape[0] for shape in shapes)
        assert len(found[at]) == next((edge for edge in edges if edge >= longest), longest)
    joined = _joined([pad(rows), pad(rows[:1])], dict.fromkeys(batch, None), pad.fills(batch))
    whole = pad(rows + rows[:1])
    assert {name: column.tolist() for name, column in joined.items()} == {name: column.tolist() for name, column in whole.items()}


def test_tuples_of_several_axes() -> None:
    """The masks of a field stand together, in the order of its axes."""
    batch = fb.padded(1, 0, axes=2)([(numpy.ones((1, 2)), numpy.ones((3, 1))), (numpy.ones((2, 1)), numpy.ones((1, 4)))])
    assert [column.shape for column in batch] == [(2, 2, 2), (2, 3, 4), (2, 3), (2, 4), (2, 2), (2, 2)]
    assert {name: axes for name, (_, axes) in fb.padded(1, 0, axes=2).fills(batch).items()} == {0: 2, 1: 2, 2: 1, 3: 1, 4: 1, 5: 1}


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([{"y": [1]}], "no field x to pad; they have y"),
        ([{"x": [1]}, {"x": [1], "y": 2}], "different fields: x, and x, y"),
        ([{"x": [[1, 2]]}, {"x": [[1, 2, 3]]}], r"its shapes are \[\(1, 2\), \(1, 3\)\]"),
        ([{"x": 1}], r"its shapes are \[\(\)\]"),
    ],
)
def test_what_does_not_go_together(rows: list[dict[str, Any]], text: str) -> None:
    """Said with names and shapes."""
    with pytest.raises(ValueError, match=text):
        fb.padded("x")(rows)


@pytest.mark.parametrize(
    ("fields", "how"), [((), {}), ((1.5,), {}), (("x",), {"edges": (0,)}), (("x",), {"axes": 0}), (("x",), {"edges": {1: (2,)}})]
)
def test_mistaken_arguments(fields: Any, how: dict[str, Any]) -> None:
    """Refused where they are written."""
    with pytest.raises((TypeError, ValueError)):
        fb.padded(*fields, **how)


KINDS = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")


@pytest.mark.parametrize("kinds", list(itertools.permutations(KINDS, 2)), ids="-".join)
@pytest.mark.parametrize("tensors", [True, False])
def test_no_value_is_lost(kinds: tuple[str, str], tensors: bool) -> None:
    """Whatever the first sample's dtype is: the greatest values of both come out as they went in, but of 64 bits beside a float."""
    most = [True if kind == "bool" else float(numpy.finfo(kind).max) if "float" in kind else int(numpy.iinfo(kind).max) for kind in kinds]
    rows = [{"x": numpy.array([value] * (2 + at), dtype=kind)} for at, (kind, value) in enumerate(zip(kinds, most, strict=True))]
    rows = (
        [{"x": torch.tensor(row["x"].tolist(), dtype=getattr(torch, kind))} for row, kind in zip(rows, kinds, strict=True)]
        if tensors
        else rows
    )
    found = fb.padded("x")(rows)["x"].tolist()
    nearest = "int64" in kinds and any("float" in kind for kind in kinds)
    assert [row[0] for row in found] == ([float(value) for value in most] if nearest else most)


def test_an_empty_one_says_nothing_of_the_type() -> None:
    """``torch.tensor([])`` is float32 whatever stands beside it."""
    found = fb.padded("x")([{"x": torch.tensor([])}, {"x": torch.tensor([16777217, 5])}])["x"]
    assert (found.tolist(), found.dtype) == ([[0, 0], [16777217, 5]], torch.int64)


def test_a_field_that_is_called_as_the_mask() -> None:
    """It would be replaced without a word."""
    with pytest.raises(ValueError, match="a field x_mask of their own"):
        fb.padded("x")([{"x": numpy.zeros(1), "x_mask": numpy.zeros(1)}] * 2)


@pytest.mark.parametrize("value", [0.5, -1])
def test_a_value_that_does_not_fit(value: float) -> None:
    """It would be cut, or wrap around."""
    with pytest.raises(ValueError, match="cannot hold"):
        fb.padded("x", value=value)([{"x": torch.zeros(1, dtype=torch.uint8)}, {"x": torch.zeros(2, dtype=torch.uint8)}])
    with pytest.raises(ValueError, match="cannot hold"):
        fb.padded("x", value=value)([{"x": numpy.zeros(1, "u1")}, {"x": numpy.zeros(2, "u1")}])
