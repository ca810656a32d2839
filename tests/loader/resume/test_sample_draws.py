"""fb.rng: a function of seed, epoch and key, whoever reads the sample and when."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from support.tars import tar_shard

import forebay_loader as fb

pytest.importorskip("webdataset")

pytestmark = pytest.mark.webdataset

SAMPLES = 12


@pytest.fixture
def urls(tmp_path: Path) -> list[str]:
    for number in range(2):
        (tmp_path / f"{number}.tar").write_bytes(tar_shard(number, SAMPLES, size=20))
    return [str(tmp_path / f"{number}.tar") for number in range(2)]


def drawn(sample: Any) -> tuple[str, float]:
    return sample["__key__"], fb.rng(sample).random()


def made(urls: list[str], buffer: int = 5, **how: Any) -> Any:
    return fb.WebDataset(urls, shardshuffle=True, **how).map(drawn).shuffle(buffer)


def test_alike_in_any_order_and_other_in_the_next_epoch(urls: list[str]) -> None:
    """The place of a sample does not count; seed and epoch do."""
    data, other = made(urls), made(urls, buffer=9)
    first = dict(data)
    assert dict(other) == first
    assert set(dict(data).values()).isdisjoint(first.values())
    assert set(dict(made(urls, seed=7)).values()).isdisjoint(first.values())


def test_alike_after_a_resume(urls: list[str]) -> None:
    """Also of the samples that waited in a buffer behind the function that draws."""
    whole = list(made(urls))
    data = made(urls)
    given = iter(data)
    before = list(islice(given, 9))
    resumed = made(urls)
    resumed.load_state_dict(data.state_dict())
    assert before + list(resumed) == whole


def test_two_data_sets_at_a_time(urls: list[str]) -> None:
    """Each draws by its own seed, whichever was asked before."""
    one, other = made(urls, 0), made(urls, 0, seed=7)
    apart = list(one), list(other)
    one.set_epoch(0)
    other.set_epoch(0)
    pairs = list(zip(one, other, strict=True))
    assert ([first for first, _ in pairs], [second for _, second in pairs]) == apart


def test_refused_in_words(urls: list[str]) -> None:
    """Where nobody knows the epoch, or the key."""
    with pytest.raises(TypeError, match=r"takes a sample with its '__key__'.*got tuple: call it before to_tuple"):
        fb.rng(("a",))
    with pytest.raises(TypeError, match="got dict"):
        fb.rng({"jpg": b""})
    list(made(urls))
    with pytest.raises(RuntimeError, match=r"functions in \.map and the like of an fb\.WebDataset"):
        fb.rng("000-001")
