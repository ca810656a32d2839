"""The loops over samples that are all alike: the same samples as reading the tar from its start, and no others."""

from __future__ import annotations

import io
from typing import Any

import pytest
from support.tarmaking import written

from forebay_loader.tar import samples_of
from forebay_loader.uniform import FROM_SAMPLES, uniform_samples
from forebay_proxy.wire.sampleindex import IndexBuilder, SampleIndex, decode, encode
from forebay_proxy.wire.tarscan import scan

URL = "s3://b/a.tar"
COUNT = FROM_SAMPLES + 4

Files = list[tuple[str, bytes]]


def indexed(tar: bytes) -> SampleIndex:
    builder = IndexBuilder()
    for member in scan(lambda at, size: tar[at : at + size], len(tar)):
        builder.add(*member)
    return decode(encode(builder.finished(len(tar))))


def files(*suffixes: str, count: int = COUNT, key: str = "k{}") -> Files:
    return [(f"{key.format(number)}.{suffix}", f"{suffix}{number}".encode() * number) for number in range(count) for suffix in suffixes]


def found(made: Files, start: int = 0, stop: int | None = None) -> list[dict[str, Any]] | None:
    tar = written(made)
    index = indexed(tar)
    samples = uniform_samples(tar, index, URL, start, len(index) if stop is None else stop)
    return None if samples is None else list(samples)


def by_reading(made: Files) -> list[dict[str, Any]]:
    return list(samples_of([{"url": URL, "stream": io.BytesIO(written(made))}]))


@pytest.mark.parametrize("suffixes", [("jpg",), ("jpg", "cls"), ("cls", "seg.png")])
def test_the_samples_of_reading(suffixes: tuple[str, ...]) -> None:
    """Keys, values, and the order of both."""
    made = files(*suffixes)
    assert [list(sample.items()) for sample in found(made) or []] == [list(sample.items()) for sample in by_reading(made)]


@pytest.mark.parametrize("suffixes", [("jpg",), ("jpg", "cls")])
def test_any_part_of_them(suffixes: tuple[str, ...]) -> None:
    """From the middle to before the end."""
    made = files(*suffixes)
    assert found(made, 3, 3 + FROM_SAMPLES) == by_reading(made)[3 : 3 + FROM_SAMPLES]


def test_one_odd_sample_is_left_to_the_loop_for_any() -> None:
    """A file more, one less, another order, three files; keys that are not ASCII; too few to look."""
    made = files("jpg", "cls")
    assert found([*made, ("z.jpg", b"1"), ("z.cls", b"1"), ("z.txt", b"1")]) is None
    assert found([*made, ("z.jpg", b"1")]) is None
    assert found([*made, ("z.cls", b"1"), ("z.jpg", b"1")]) is None
    assert found(files("jpg", "cls", "txt")) is None
    assert found(files("jpg", key="é{}")) is None
    assert found(files("jpg", count=FROM_SAMPLES - 1)) is None


def test_files_in_turn_are_not_yet_samples_alike() -> None:
    """The same two files in turn, but one to a sample at the start and at the end: where samples end is not where pairs do."""
    made = [("first.cls", b"a"), *files("jpg", "cls"), ("last.jpg", b"c")]
    assert found(made) is None
    assert found(made, 1, COUNT + 1) == by_reading(made)[1:-1]
