"""Chance by a seed: written down, so that no Python and no machine may answer otherwise."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay_loader.videos.sampling.sampler import Draws, sample_seed


def test_the_sequence_is_written_down() -> None:
    """Of MT19937 seeded by the text ``7/clip``; another one would be another training."""
    draws = Draws(7, "clip")
    assert [draws.below(1_000_000) for _ in range(4)] == [914706, 110088, 799678, 58391]


def test_the_seed_of_a_sample_is_written_down() -> None:
    """Eight bytes of BLAKE2b."""
    assert sample_seed(1, 2, "000017") == 6313248258578013129


def test_seeds_and_purposes_know_nothing_of_each_other() -> None:
    """``random.Random(-1)`` is ``random.Random(1)``; a text is not. An augmentation does not repeat the draws of the sampler inside it."""
    assert len({Draws(seed, purpose).part() for seed in (-1, 1) for purpose in ("clip", "time_warp")}) == 4


@given(st.integers(), st.integers(1, 10**6))
def test_below(seed: int, end: int) -> None:
    """From 0, below the end."""
    assert 0 <= Draws(seed, "x").below(end) < end


@given(st.integers(), st.integers(0, 300), st.data())
def test_some_are_different_and_ascending(seed: int, end: int, data: st.DataObject) -> None:
    """As many as were asked for, of the range, none twice."""
    count = data.draw(st.integers(0, end))
    found = Draws(seed, "x").some(count, end)
    assert found == sorted(set(found))
    assert len(found) == count
    assert set(found) <= set(range(end))


def test_some_reaches_every_choice() -> None:
    """Each of the ten pairs of five comes, none much oftener than the others."""
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(2000):
        pair = tuple(Draws(seed, "x").some(2, 5))
        counts[pair] = counts.get(pair, 0) + 1
    assert len(counts) == 10
    assert max(counts.values()) < 1.5 * min(counts.values())
