"""The stages that stand in for webdataset's give the same, and say of what each output was made."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

wds = pytest.importorskip("webdataset")

from forebay_loader.resume.cursor import Cursor  # noqa: E402  # webdataset is there
from forebay_loader.resume.held_batches import BatchRows, FullBatches, StreamSlice  # noqa: E402
from forebay_loader.resume.known_stages import kept_stage, kind_of, untold  # noqa: E402
from forebay_loader.resume.sample_buffer import SampleBuffer  # noqa: E402

pytestmark = pytest.mark.webdataset

SIZES = st.integers(1, 9)


def passed(samples: Iterable[Any], make: Callable[[Iterator[Any], Cursor], Iterator[Any]]) -> list[tuple[Any, Any]]:
    """What a stage gives of ``samples``, and of which of them it says that it was made: they are their own ordinals."""
    cursor = Cursor()
    given = cursor.counting(iter(samples))
    return [(one, _plain(cursor.made())) for one in make(given, cursor)]


def _plain(made: Any) -> Any:
    return made if isinstance(made, int) else list(made)


@given(st.integers(0, 40), SIZES, st.integers(0, 12), st.integers())
def test_the_buffer_draws_as_webdataset_does(count: int, size: int, initial: int, seed: int) -> None:
    """The same order, from a generator of the same seed; each sample with its own number."""
    theirs = list(wds.filters._shuffle(iter(range(count)), size, initial, random.Random(seed)))
    ours = passed(range(count), lambda data, cursor: SampleBuffer(random.Random(seed), cursor, size, initial).shuffled(data))
    assert ours == [(one, one) for one in theirs]


@given(st.integers(0, 30), SIZES, st.booleans())
def test_batches_are_webdatasets(count: int, size: int, partial: bool) -> None:
    """Full ones, and the last if it is wanted; made of the samples that are in them."""
    theirs = list(wds.filters._batched(iter(range(count)), size, None, partial))
    ours = passed(range(count), lambda data, cursor: FullBatches(size, None, cursor, partial=partial).batches(data))
    assert ours == [(one, one) for one in theirs]


def test_a_batch_is_given_when_it_is_full() -> None:
    """Nothing behind it was taken: that would be in no batch and in no state."""
    cursor = Cursor()
    batches = FullBatches(3, None, cursor, partial=True).batches(cursor.counting(iter(range(9))))
    assert next(batches) == [0, 1, 2]
    assert cursor.read == 3


@given(st.integers(0, 30), SIZES)
def test_rows_are_those_of_the_batches(count: int, size: int) -> None:
    """Each made of its own sample."""

    def rows(data: Iterator[Any], cursor: Cursor) -> Iterator[Any]:
        batches = FullBatches(size, None, cursor, partial=True).batches(data)
        return BatchRows(wds.filters._unlisted, cursor).rows(batches)

    assert passed(range(count), rows) == [(one, one) for one in range(count)]


@given(st.integers(0, 20), st.integers(0, 8), st.none() | st.integers(0, 25), st.integers(1, 4))
def test_a_slice_is_that_of_islice(count: int, start: int, stop: int | None, step: int) -> None:
    cursor = Cursor()
    data = cursor.counting(iter(range(count)))
    assert list(StreamSlice((start, stop, step), cursor).part(data)) == list(islice(range(count), start, stop, step))


def test_a_share_is_drawn_by_place() -> None:
    """The same for the same key, another for another, and about as large as was asked."""
    drawn = [_shares(key) for key in ("0/1/0", "0/1/0", "0/2/0")]
    assert drawn[0] == drawn[1] != drawn[2]
    assert 400 < len(drawn[0]) < 600


def _shares(key: str) -> list[int]:
    cursor = Cursor(["a"], key=key)
    cursor.shards.begin({"url": "a"}, 0)
    made = kept_stage(wds.rsample(0.5), cursor.counting(iter(range(1000))), cursor)
    assert made is not None
    return list(made)


KINDS = {
    "one": [wds.map(str), wds.select(bool), wds.to_tuple("a"), wds.rename(a="b"), wds.decode(), wds.map_dict(a=str), wds.map_tuple(str)],
    "shuffle": [wds.shuffle(3), wds.detshuffle(3)],
    "batch": [wds.batched(3), wds.filters.batched(3, partial=False)],
    "rows": [wds.unbatched(), wds.filters.unlisted()],
    "slice": [wds.slice(3)],
    "part": [wds.rsample(0.5)],
    "": [wds.Cached(), lambda data: data, list],
}


@pytest.mark.parametrize("kind", KINDS)
def test_stages_are_known_by_name(kind: str) -> None:
    assert {kind_of(stage) for stage in KINDS[kind]} == {kind}


def test_what_batches_allow_behind_them() -> None:
    """What is one for one, and their rows; a buffer of batches cannot be filled again."""
    assert untold([wds.shuffle(3), wds.batched(3), wds.map(str), wds.unbatched(), wds.batched(2)]) == ""
    assert "unbatched comes behind the rows of batches" in untold([wds.batched(3), wds.unbatched(), wds.batched(2), wds.unbatched()])
    assert "shuffle comes behind batches" in untold([wds.batched(3), wds.shuffle(3)])
