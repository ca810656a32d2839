"""What the arguments of a data set come to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import forebay_loader as fb
from forebay_loader.base.timeouts import Limits
from forebay_loader.dataset.arguments import Arguments

pytest.importorskip("webdataset")

pytestmark = pytest.mark.webdataset


def asked(**how: Any) -> Arguments:
    """Everything at its default but this."""
    usual = dict.fromkeys(("handler", "mode", "shardshuffle", "seed", "select_files", "rename_files"))
    return Arguments(**{**usual, "limits": Limits(), "resampled": False, "detshuffle": False, "resume": "exact", **how})


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


def test_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given, else WDS_SEED, else 0."""
    monkeypatch.delenv("WDS_SEED", raising=False)
    assert [asked().seed_number, asked(seed=5).seed_number] == [0, 5]
    monkeypatch.setenv("WDS_SEED", "9")
    assert [asked().seed_number, asked(seed=0).seed_number] == [9, 0]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"shardshuffle": "yes"}, "shardshuffle takes True, False, None or a number; got 'yes'"),
        ({"shardshuffle": [3]}, "shardshuffle takes"),
        ({"data_parallel": 3}, r"data_parallel takes \(rank, size\), two whole numbers such as \(0, 8\); got 3"),
        ({"data_parallel": "12"}, "data_parallel takes"),
        ({"data_parallel": (0, 1, 2)}, "data_parallel takes"),
        ({"data_parallel": (0, "two")}, "data_parallel takes"),
        ({"data_parallel": (0.5, 2)}, "data_parallel takes"),
        ({"epoch": "x"}, "epoch takes a whole number from 0, a callable that gives one, or an object with value"),
        ({"epoch": 1.5}, "epoch takes"),
        ({"epoch": [1]}, "epoch takes"),
        ({"ahead": "many"}, "ahead takes a number of shards, 0 for none; got 'many'"),
        ({"limits": 60}, r"limits takes fb.Limits\(…\); got 60"),
        ({"handler": "warn"}, "handler takes a function of an exception"),
        ({"select_files": ".jpg"}, "select_files takes a function of a file's name"),
        ({"rename_files": {}}, "rename_files takes"),
    ],
)
def test_a_wrong_kind_is_named(how: dict[str, Any], words: str) -> None:
    """In our words, where it is given: the argument, what it takes, what it got."""
    with pytest.raises(TypeError, match=words):
        fb.WebDataset("s3://bucket/{0..3}.tar", **how)


@pytest.mark.parametrize(
    "how",
    [
        {"data_parallel": ("1", "2")}, {"data_parallel": [1, 2]}, {"epoch": 3}, {"epoch": lambda: 3}, {"epoch": SimpleNamespace(value=3)},
        {"shardshuffle": 100.0}, {"ahead": False}, {"ahead": 4}, {"handler": None},
    ],
    ids=lambda given: str(given).partition(" at 0x")[0],  # workers that share the tests must give them one name
)  # fmt: skip
def test_what_stands_for_the_right_kind_is_taken(how: dict[str, Any]) -> None:
    """Digits as a launcher's variables hold them, lists, callables, objects with a value."""
    fb.WebDataset("s3://bucket/{0..3}.tar", nodesplitter=iter, **how)


def test_a_negative_epoch_or_number_is_a_value() -> None:
    """Not a wrong kind: the number is."""
    for how in ({"epoch": -1}, {"ahead": -1}, {"data_parallel": (2, 2)}):
        with pytest.raises(ValueError, match=next(iter(how))):
            fb.WebDataset("s3://bucket/{0..3}.tar", **how)
