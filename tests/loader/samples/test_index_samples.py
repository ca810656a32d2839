"""Samples by an index: the same as webdataset reads, for every tar that has one, in whatever pieces its bytes come."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.indexes import URL, by_webdataset, indexed, passed
from support.lengths import examples
from support.tarmaking import archives, written

from forebay_loader.samples.byte_window import Flowing, window_over
from forebay_loader.samples.index_samples import samples_in, starts_at
from forebay_proxy.wire.tar.sample_index import NotIndexable

pytestmark = pytest.mark.webdataset

COUNT = 20
Files = list[tuple[str, bytes]]


@settings(max_examples=examples(150), deadline=None)
@given(archives(), st.integers(0, 12), st.integers(0, 12))
def test_random_tars_give_webdatasets_samples(tar: bytes, start: int, stop: int) -> None:
    """All of them, and any part; a tar that has no index is one that webdataset disputes."""
    try:
        index = indexed(tar)
    except NotIndexable:
        assume(False)
    expected = by_webdataset(tar)
    assert list(samples_in(window_over(io.BytesIO(tar)), len(tar), index, URL)) == expected
    assert list(samples_in(window_over(io.BytesIO(tar)), len(tar), index, URL, start, stop)) == expected[start:stop]


def test_an_index_of_other_bytes_is_refused() -> None:
    """Another length, or places beyond the end."""
    tar = written([("a.jpg", b"x" * 900)])
    index = indexed(tar)
    with pytest.raises(ValueError, match="an index of a shard of 10240 bytes, and this one has 10752"):
        list(samples_in(window_over(io.BytesIO(tar + bytes(512))), len(tar) + 512, index, URL))
    index.length = 1024
    with pytest.raises(ValueError, match="beyond the 1024"):
        list(samples_in(window_over(io.BytesIO(tar[:1024])), len(tar[:1024]), index, URL))


def files(*suffixes: str, count: int = COUNT, key: str = "k{}", size: int = 9_000) -> Files:
    """The n-th sample of ``count`` has files of about n times ``size`` bytes: several windows in all."""
    return [
        (f"{key.format(number)}.{suffix}", f"{suffix}{number:04d}".encode() * (number * size // 8))
        for number in range(count)
        for suffix in suffixes
    ]


def window_on(content: bytes, start: int) -> Flowing:
    """As of a shard that is here as a file."""
    opened = passed(content)
    return Flowing(opened.readinto1, opened.skip(start), opened.skip)


def flowing(made: Files, start: int = 0, stop: int | None = None) -> Iterator[dict[str, Any]]:
    tar = written(made)
    index = indexed(tar)
    return samples_in(window_on(tar, starts_at(index, start)), len(tar), index, URL, start, stop)


ODD = {
    "one file": files("jpg"),
    "two": files("jpg", "cls"),
    "three": files("jpg", "cls", "txt"),
    "two, small": files("jpg", "cls", size=10),
    "a sample with one more": [*files("jpg", "cls"), ("z.jpg", b"1"), ("z.cls", b"1"), ("z.txt", b"1")],
    "keys of two bytes a letter": files("jpg", "cls", key="\u00e9{}"),
}


@pytest.mark.parametrize("what", ODD)
def test_samples_alike_and_others(what: str) -> None:
    """Keys, values, and the order of both; from the middle too, and to before the end."""
    made = ODD[what]
    expected = [list(sample.items()) for sample in by_webdataset(written(made))]
    assert [list(sample.items()) for sample in flowing(made)] == expected
    stop = len(expected) - 1
    assert [list(sample.items()) for sample in flowing(made, 1, stop)] == expected[1:stop]


@pytest.mark.parametrize("what", ["one file", "two", "three"])
def test_a_shard_that_ends_early_gives_no_shorter_file(what: str) -> None:
    """Where no more bytes come, it is an error."""
    tar = written(ODD[what])
    index = indexed(tar)
    samples = samples_in(window_on(tar[: len(tar) * 2 // 3], starts_at(index, 0)), len(tar), index, URL)
    with pytest.raises(ValueError, match=r"the index tells of bytes \d+ to \d+, and only \d+ of them came"):
        list(samples)


@pytest.mark.parametrize("suffixes", [("jpg",), ("jpg", "cls")])
def test_files_that_overlap(suffixes: tuple[str, ...]) -> None:
    """As hostile headers have them: no file is shorter than the index says."""
    tar = written(files(*suffixes))
    index = indexed(tar)
    width = len(suffixes)
    index.sizes[5 * width] = 900_000  # larger than a window, far into the samples that follow
    samples = list(samples_in(window_on(tar, starts_at(index, 0)), len(tar), index, URL))
    assert [sample["jpg"] for sample in samples] == [
        tar[at : at + size] for at, size in zip(index.offsets[::width], index.sizes[::width], strict=True)
    ]
