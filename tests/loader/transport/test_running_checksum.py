"""The sum over delivered bytes: the same however they are cut, with and without ``xxhash``."""

from __future__ import annotations

import sys

import pytest

from forebay_loader.transport import body as running_checksum
from forebay_loader.transport.body import Crc32, new_sum


@pytest.mark.parametrize("absent", [False, True], ids=["xxhash", "standard library"])
def test_pieces_and_the_whole_have_one_sum(absent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any cutting gives the same sum, other bytes another."""
    monkeypatch.setattr(running_checksum, "_MAKERS", [])
    if absent:
        monkeypatch.setitem(sys.modules, "xxhash", None)
    whole, pieces, other = new_sum(), new_sum(), new_sum()
    assert isinstance(whole, Crc32) == absent
    data = bytes(range(256)) * 300
    whole.update(data)
    for start in range(0, len(data), 1000):
        pieces.update(memoryview(data)[start : start + 1000])
    other.update(data[:-1] + b"x")
    assert whole.intdigest() == pieces.intdigest() != other.intdigest()
