"""fb.padded: one array for fields of different lengths, and a mask of what is real."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import forebay_loader as fb

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


@pytest.mark.parametrize(("fields", "how"), [((), {}), ((1.5,), {}), (("x",), {"edges": (0,)})])
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
