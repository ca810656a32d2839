"""The choice of a batch size over simulated steps: it grows where that pays, gives back where data is the limit, and comes to rest."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_loader.batches.ladder_controller import LEAST_GAIN, LadderController, StepsWindow

LADDER = (32, 64, 128, 256)


class World(NamedTuple):
    """Seconds of a step: ``fixed`` + size * ``each``, off by up to ``noise``; data comes at ``data`` samples a second."""

    fixed: float = 0.05
    each: float = 0.0005
    data: float = 1e9
    noise: float = 0.0

    def window(self, size: int, chance: random.Random, steps: int = 50) -> StepsWindow:
        busy = steps * (self.fixed + size * self.each) * (1 + chance.uniform(-self.noise, self.noise))
        return StepsWindow(steps, busy, max(0.0, steps * size / self.data - busy))

    def gain(self, rung: int) -> float:
        """How many more samples a second the rung above gives, where data is no limit."""
        here, there = LADDER[rung], LADDER[rung + 1]
        return there / (self.fixed + there * self.each) / (here / (self.fixed + here * self.each)) - 1


def sizes(controller: LadderController, world: World, windows: int, seed: int = 0) -> Iterator[int]:
    """The size after each window."""
    chance = random.Random(seed)
    for _ in range(windows):
        controller.decide(world.window(controller.size, chance))
        yield controller.size


def moves(found: list[int]) -> int:
    return sum(before != after for before, after in zip([LADDER[0], *found], found, strict=False))


worlds = st.builds(World, st.floats(0.0, 0.2), st.floats(1e-6, 0.01), data=st.just(1e9), noise=st.just(0.0))


@given(worlds, st.floats(0.0, 0.02), st.integers(0, 9))
def test_it_grows_as_far_as_it_pays(world: World, noise: float, seed: int) -> None:
    """Every rung climbed gives a tenth more, give or take what noise hides; the one above does not, and is tried ever more seldom."""
    found = list(sizes(LadderController(LADDER), world._replace(noise=noise), 400, seed))
    rung, off = LADDER.index(Counter(found[200:]).most_common(1)[0][0]), 5 * noise + 1e-6
    assert all(world.gain(below) >= LEAST_GAIN - off for below in range(rung))
    assert rung == len(LADDER) - 1 or world.gain(rung) <= LEAST_GAIN + off
    assert moves(found) <= 24
    assert moves(found[200:]) <= 6


@given(worlds, st.floats(50.0, 20000.0), st.integers(0, 9))
def test_it_does_not_swing_where_data_is_the_limit(world: World, data: float, seed: int) -> None:
    """A rung that data does not pay for is tried ever more seldom."""
    found = list(sizes(LadderController(LADDER), world._replace(data=data, noise=0.01), 400, seed))
    assert moves(found) <= 24
    assert moves(found[200:]) <= 6


def test_it_gives_back_where_data_becomes_the_limit_and_grows_again_afterwards() -> None:
    """The origin becomes slow: back to the user's size, rung by rung; it is fast again: up again, after a while."""
    controller, fast = LadderController(LADDER), World()
    assert list(sizes(controller, fast, 20))[-1] == 256
    slow = list(sizes(controller, fast._replace(data=300.0), 10))
    assert slow[-1] == 32
    assert sorted(slow, reverse=True) == slow
    again = list(sizes(controller, fast, 60))
    assert again[-1] == 256
    assert again[:4] == [32] * 4  # not at once


def paused(world: World, at: int) -> list[int]:
    """The size after each of 40 windows, with a checkpoint of 20 s in one."""
    controller, chance, found = LadderController(LADDER), random.Random(1), []
    for number in range(40):
        window = world.window(controller.size, chance)
        controller.decide(window._replace(busy_s=window.busy_s + 20.0) if number == at else window)
        found.append(controller.size)
    return found


@pytest.mark.parametrize("at", range(14))
def test_a_pause_changes_nothing(at: int) -> None:
    """In any of the windows: it ends at the same size without a rung given back."""
    found = paused(World(), at)
    assert (found[-1], found) == (256, sorted(found))


@given(worlds, st.integers(0, 40), st.integers(0, 9))
def test_a_state_goes_on(world: World, cut: int, seed: int) -> None:
    """Through JSON: the same size, and it comes to rest at the same one; another ladder's is refused."""
    made, again = LadderController(LADDER), LadderController(LADDER)
    list(sizes(made, world, cut, seed))
    again.load_state_dict(json.loads(json.dumps(made.state_dict())))
    assert again.state_dict() == made.state_dict()
    assert again.size == made.size
    with pytest.raises(ValueError, match=r"of the ladder \(32, 64, 128, 256\), and this one is \(32, 64\)"):
        LadderController(LADDER[:2]).load_state_dict(made.state_dict())
