"""What is kept comes back bit for bit and type for type; what cannot is refused by its name."""

from __future__ import annotations

import struct
from array import array
from collections import OrderedDict
from typing import Any

import numpy
import pytest
import torch

from forebay_loader.memos.entry import EntryDamaged, key_in, packed, unpacked
from forebay_loader.memos.errors import MemoRefused
from forebay_loader.memos.kept_value import put_together, taken_apart
from forebay_loader.samples.shard_name import VisitedShard
from forebay_loader.videos.clip_info import ClipInfo

KEY = bytes(range(24))


def back(value: Any, given: Any = None) -> Any:
    return put_together(unpacked(KEY, packed(KEY, taken_apart(value, given=given))), given)


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -5, 1 << 63, -(1 << 200), 1.5, -0.0, float("inf"), "", "é\ud800\x00", b"", b"\x00\xff", [], (), {},
        {"b": 1, "a": [1, (2.0, None)], 3: {"x": b"y"}}, {(1, "a"): True}, array("d", [1.5, 2.5]), array("f"),
        ClipInfo(2, array("d", [0.0, 0.5]), 1.0, 4, 6, keyframes=(0,), motion=array("f", [0.25])), [[[["deep"]]]],
    ],
    ids=repr,
)  # fmt: skip
def test_plain_values_are_the_same(value: Any) -> None:
    """Type, value and, of a dict, order."""
    found = back(value)
    assert type(found) is type(value)
    assert repr(found) == repr(value)


@pytest.mark.parametrize("payload", [0x7FF8000000000000, 0x7FF8000000000123, 0xFFF8000000000001])
def test_each_nan_keeps_its_bits(payload: int) -> None:
    """Two that print alike differ."""
    value = struct.unpack("<d", payload.to_bytes(8, "little"))[0]
    assert struct.pack("<d", back(value)) == struct.pack("<d", value)


@pytest.mark.parametrize("dtype", ["u1", "?", "<i8", ">i4", "<f2", "<f4", "<c16", "S3", "<U4", "<M8[us]", "<m8[D]"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3, 4)])
def test_arrays_are_the_same(dtype: str, shape: tuple[int, ...]) -> None:
    """Shape, dtype with its order of bytes, and bits; and they may be written to."""
    value = numpy.arange(24).astype("u1").astype(dtype)[: int(numpy.prod(shape))].reshape(shape)
    found = back({"x": value})["x"]
    assert (found.dtype.str, found.shape, found.tobytes()) == (value.dtype.str, value.shape, value.tobytes())
    assert found.flags.writeable


def test_an_array_that_lies_otherwise_is_the_same() -> None:
    """Turned, in steps, in Fortran's order: what counts is each place's value."""
    value = numpy.arange(24).reshape(4, 6)
    assert [back(one).tolist() for one in (value.T, value[::-2, 1::2])] == [value.T.tolist(), value[::-2, 1::2].tolist()]


@pytest.mark.parametrize("value", [numpy.float32(0.1), numpy.int64(-3), numpy.bool_(True), numpy.str_("x")], ids=repr)
def test_scalars_of_numpy_stay_scalars(value: Any) -> None:
    """``numpy.float32`` is no float, and no array."""
    found = back(value)
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64, torch.float16])
def test_tensors_stay_tensors(dtype: torch.dtype) -> None:
    """Of any shape, turned ones too."""
    for value in (torch.arange(6).to(dtype).reshape(2, 3).T, torch.tensor(1).to(dtype), torch.zeros(0, 2, dtype=dtype)):
        found = back(value)
        assert (found.dtype, found.shape) == (value.dtype, value.shape)
        assert torch.equal(found, value)


class Own(dict):  # type: ignore[type-arg]
    """A subclass: would come back as a dict."""


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"x": {1, 2}}, r"\['x'\] is a builtins\.set"),
        ({"x": [object()]}, r"\['x'\]\[0\] is a builtins\.object"),
        (Own(), r"Own"),
        (OrderedDict(), "OrderedDict"),
        (numpy.array([None]), "ndarray of object"),
        (numpy.zeros(1, dtype=[("a", "i4")]), "ndarray of "),
        (numpy.ma.masked_array([1], [True]), "MaskedArray"),
        (torch.zeros(1, requires_grad=True), "with a gradient"),
        (torch.zeros(2, 2).to_sparse(), "sparse"),
        (bytearray(b"x"), "bytearray"),
    ],
)
def test_anything_else_is_refused_by_name(value: Any, said: str) -> None:
    """And never pickled."""
    with pytest.raises(MemoRefused, match=said):
        taken_apart(value)


def test_what_holds_itself_is_refused() -> None:
    """In words, not by the end of the stack."""
    value: list[Any] = []
    value.append(value)
    with pytest.raises(MemoRefused, match="holds itself"):
        taken_apart(value)


def test_members_that_passed_unchanged_are_only_referred_to() -> None:
    """And are those of the sample that asks; what may have been changed in its place is kept."""
    data, changed = b"x" * 10_000, numpy.zeros(3)
    given = {"__key__": "a", "mp4": data, "n": changed}
    changed += 1
    value = {"__key__": given["__key__"], "mp4": data, "n": changed, "new": 2}
    kept = packed(KEY, taken_apart(value, given=given))
    assert len(kept) < 1000
    found = put_together(unpacked(KEY, kept), {"__key__": "a", "mp4": b"now", "n": numpy.ones(3) * 9})
    assert (found["mp4"], found["n"].tolist(), list(found)) == (b"now", [1.0] * 3, list(value))


def test_the_url_of_a_sample_stays_that_of_the_visit() -> None:
    """It is referred to; that of another sample is kept as a text."""
    first, later = (VisitedShard.of("s3://b/0.tar", 7, before) for before in range(2))
    kept = taken_apart({"__url__": first, "other": [first]}, given={"__url__": first})
    made = put_together(kept, {"__url__": later})
    assert made["__url__"] is later
    assert type(made["other"][0]) is str
    assert made["other"] == [first]


def test_each_damaged_byte_is_found() -> None:
    """Whichever it is, also one that only fills a gap; and an entry cut short; and one of another key."""
    entry = packed(KEY, taken_apart({"x": numpy.arange(5), "y": b"abc"}))
    assert key_in(entry) == KEY
    for at in range(len(entry)):
        with pytest.raises(EntryDamaged):
            unpacked(KEY, entry[:at] + bytes([entry[at] ^ 1]) + entry[at + 1 :])
        with pytest.raises(EntryDamaged):
            unpacked(KEY, entry[:at])
    with pytest.raises(EntryDamaged):
        unpacked(bytes(24), entry)
