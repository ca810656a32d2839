"""Phases of training."""

from __future__ import annotations

import pickle

import pytest
from support.clip_infos import steady

from forebay_loader.videos.sampling import by_epoch, for_epoch, keyframes, sampler_of, time_warp, uniform

PHASES = by_epoch({0: uniform(8), 10: keyframes(8), 20: uniform(16)})


@pytest.mark.parametrize(
    ("epoch", "sampler"), [(0, uniform(8)), (9, uniform(8)), (10, keyframes(8)), (19, keyframes(8)), (99, uniform(16))]
)
def test_the_phase_of_an_epoch(epoch: int, sampler: object) -> None:
    """The last that has begun."""
    assert for_epoch(PHASES, epoch) == sampler


def test_others_are_of_every_epoch() -> None:
    """A sampler without phases, and a function of a user's."""
    assert for_epoch(uniform(8), 3) == uniform(8)
    assert for_epoch(len, 3) is len


def test_inside_an_augmentation() -> None:
    """The wrapper stays, what it wraps is the epoch's."""
    assert for_epoch(time_warp(PHASES), 10) == time_warp(keyframes(8))


def test_phases_in_a_phase() -> None:
    """All the way down to a sampler."""
    assert for_epoch(by_epoch({0: PHASES}), 12) == keyframes(8)


def test_without_an_epoch_it_says_so() -> None:
    """Any answer would be right in one phase only."""
    with pytest.raises(TypeError, match="asked without an epoch"):
        PHASES(steady(10), 0)


def test_it_is_text() -> None:
    """Printed, and read again; and it travels."""
    assert sampler_of(repr(PHASES)) == PHASES
    assert pickle.loads(pickle.dumps(PHASES)) == PHASES


@pytest.mark.parametrize(
    ("phases", "error", "told"),
    [
        ({1: uniform(8)}, ValueError, "from epoch 0"),
        ({0: 8}, TypeError, "for epoch 0"),
        ({"0": uniform(8)}, TypeError, "epochs from 0"),
        ({-1: len}, ValueError, "epochs from 0"),
    ],
)
def test_wrong_phases_are_named_at_once(phases: dict[int, object], error: type[Exception], told: str) -> None:
    """Where they are given, not in epoch 10."""
    with pytest.raises(error, match=told):
        by_epoch(phases)
