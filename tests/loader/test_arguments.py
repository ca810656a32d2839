"""What the arguments of a data set come to."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from forebay_loader.arguments import Arguments, with_positional


def asked(**how: Any) -> Arguments:
    """Everything at its default but this."""
    usual: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(Arguments))
    return Arguments(**{**usual, "resampled": False, "detshuffle": False, **how})


@pytest.mark.parametrize(
    ("value", "shuffles"), [(None, False), (False, False), (0, False), (-1, False), (True, True), (1, True), (100, True)]
)
def test_shardshuffle(value: Any, shuffles: bool) -> None:
    """True and any size permute; None, False and 0 leave the list."""
    assert asked(shardshuffle=value).shuffles is shuffles


def test_draws_leave_nothing_to_shuffle() -> None:
    """resampled, by either name, wins over both shuffles."""
    for how in ({"resampled": True}, {"mode": "resampled"}):
        made = asked(shardshuffle=True, detshuffle=True, **how)
        assert (made.draws, made.shuffles, made.shuffle_buffer) == (True, False, 0)


@pytest.mark.parametrize(("value", "size"), [(True, 100), (7, 7), (None, 0), (0, 0)])
def test_detshuffle(value: Any, size: int) -> None:
    """webdataset's own buffer, of the size it would have, instead of a permutation."""
    made = asked(shardshuffle=value, detshuffle=True)
    assert (made.shuffles, made.shuffle_buffer) == (False, size)


def test_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given, else WDS_SEED, else 0."""
    monkeypatch.delenv("WDS_SEED", raising=False)
    assert [asked().seed_number, asked(seed=5).seed_number] == [0, 5]
    monkeypatch.setenv("WDS_SEED", "9")
    assert [asked().seed_number, asked(seed=0).seed_number] == [9, 0]


def test_by_position() -> None:
    """Values take the names in order; more than there are is an error that gives both numbers."""
    assert with_positional({"a": 1, "b": 2}, (7,), ("b", "c")) == {"a": 1, "b": 7}
    with pytest.raises(TypeError, match="takes 2 arguments here by position, 3 were given"):
        with_positional({}, (1, 2, 3), ("a", "b"))
