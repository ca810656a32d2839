"""Which samples come into which output shard."""

from __future__ import annotations

from array import array
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.wire.tar.sample_index import IndexBuilder
from forebay_stage.plan import PIECE_BYTES, Part, Piece, estimated_outputs, outputs, permuted, sample_ends
from forebay_stage.spec import StageSpec

Sizes = list[list[int]]
BLOCK = 512


def parts_of(sizes: Sizes) -> list[Part]:
    """Parts whose samples have so many blocks."""
    return [Part(str(number), array("Q", accumulate(BLOCK * size for size in part))) for number, part in enumerate(sizes)]


def samples_in(parts: list[Part], made: list[list[Piece]]) -> list[list[tuple[str, int]]]:
    """(part, number in it) of each sample of each output."""
    found = []
    for pieces in made:
        found.append(samples := [])
        for name, offset, size in pieces:
            ends = parts[int(name)].ends
            starts = [0, *ends[:-1]]
            inside = [
                (name, number) for number, (start, end) in enumerate(zip(starts, ends, strict=True)) if offset <= start < offset + size
            ]
            assert sum(ends[number] - starts[number] for _, number in inside) == size
            samples += inside
    return found


sizes = st.lists(st.lists(st.integers(1, 40), max_size=9), min_size=1, max_size=7)


@given(sizes, st.integers(1, 12), st.one_of(st.none(), st.integers(0, 5)))
def test_every_sample_comes_once_by_count(sizes: Sizes, count: int, seed: int | None) -> None:
    """So many in each output but the last; in the order of SRC, or of the seed."""
    parts, spec = parts_of(sizes), StageSpec(samples_per_shard=count, shuffle=seed)
    made = samples_in(parts, list(outputs(parts, spec)))
    total = [(part.name, number) for part in parts for number in range(len(part.ends))]
    flat = [sample for samples in made for sample in samples]
    assert flat == (total if seed is None else [total[permuted(n, len(total), seed)] for n in range(len(total))])
    assert [len(samples) for samples in made[:-1]] == [count] * (len(made) - 1)
    assert len(made) == estimated_outputs(parts, spec)


@given(sizes, st.integers(1, 200), st.one_of(st.none(), st.integers(0, 5)))
def test_by_size_no_output_is_larger(sizes: Sizes, blocks: int, seed: int | None) -> None:
    """But one of a single sample; and none could take the sample behind it."""
    parts, limit = parts_of(sizes), blocks * BLOCK
    made = list(outputs(parts, StageSpec(bytes_per_shard=limit, shuffle=seed)))
    samples = samples_in(parts, made)
    assert sorted(sample for one in samples for sample in one) == sorted((part.name, n) for part in parts for n in range(len(part.ends)))

    def tar_bytes(size: int) -> int:
        return -(-(size + 1024) // 10240) * 10240

    held = [sum(piece.size for piece in pieces) for pieces in made]
    assert all(tar_bytes(size) <= limit or len(one) == 1 for size, one in zip(held, samples, strict=True))
    firsts = [samples_in(parts, [pieces[:1]])[0][0] for pieces in made[1:]]
    size_of = {
        (part.name, n): end - start for part in parts for n, (start, end) in enumerate(zip([0, *part.ends], part.ends, strict=False))
    }
    assert all(tar_bytes(size + size_of[first]) > limit for size, first in zip(held, firsts, strict=False))


@pytest.mark.parametrize("total", [1, 2, 3, 4, 5, 17, 64, 1000])
def test_a_permutation_has_every_number_once(total: int) -> None:
    """Of any length, and each seed has its own."""
    assert sorted(permuted(number, total, 7) for number in range(total)) == list(range(total))
    if total > 10:
        assert [permuted(number, total, 7) for number in range(total)] != [permuted(number, total, 8) for number in range(total)]


def test_a_shuffle_parts_neighbours() -> None:
    """Of a thousand samples hardly one is still in front of the one it was in front of."""
    order = [permuted(number, 1000, 3) for number in range(1000)]
    assert sum(second == first + 1 for first, second in pairwise(order)) < 10
    assert sum(abs(place - number) for number, place in enumerate(order)) / 1000 == pytest.approx(333, rel=0.1)


def test_without_a_size_there_are_as_many_outputs_as_inputs() -> None:
    """A shuffle alone leaves the number of shards as it is."""
    parts = parts_of([[1] * 5, [1] * 4, [1] * 3])
    assert [len(one) for one in samples_in(parts, list(outputs(parts, StageSpec(shuffle=1))))] == [4, 4, 4]


def test_neighbours_are_read_together() -> None:
    """As long as they are no larger than a piece."""
    blocks = PIECE_BYTES // BLOCK // 4
    parts = parts_of([[blocks] * 6])
    (pieces,) = outputs(parts, StageSpec(samples_per_shard=6))
    assert [piece.size for piece in pieces] == [PIECE_BYTES, PIECE_BYTES // 2]


def test_ends_of_samples() -> None:
    """A sample ends where its last file's padding ends."""
    builder = IndexBuilder()
    for name, offset, size in (("a.jpg", 512, 3), ("a.txt", 1536, 512), ("b.jpg", 2560, 513)):
        builder.add(name, offset, size)
    assert list(sample_ends(builder.finished(5000))) == [2048, 3584]
