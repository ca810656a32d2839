"""The choice of a batch size over simulated steps: it grows where that pays, gives back where data is the limit, and comes to rest."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_loader.batches.ladder_controller import LadderController, StepsWindow
from forebay_loader.batches.ladder_rules import LadderRules

LADDER = (32, 64, 128, 256)
RULES = LadderRules()


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


@given(worlds)
def test_it_grows_as_far_as_it_pays(world: World) -> None:
    """Without noise: every rung climbed gives a tenth more or the next one does not, and it stays there."""
    found = list(sizes(LadderController(LADDER), world, 100))
    rung = LADDER.index(found[-1])
    assert all(world.gain(below) >= RULES.kept_gain - 1e-6 for below in range(rung))
    assert rung == len(LADDER) - 1 or world.gain(rung) <= RULES.least_gain + 1e-6
    assert found[50:] == [found[-1]] * 50
    assert moves(found) <= len(LADDER)


@given(worlds, st.floats(0.0, 0.02), st.integers(0, 9))
def test_noise_does_not_make_it_swing(world: World, noise: float, seed: int) -> None:
    """Steps that are off by two hundredths: it still ends where it should, give or take what noise hides, after few moves."""
    found = list(sizes(LadderController(LADDER), world._replace(noise=noise), 400, seed))
    rung = LADDER.index(found[-1])
    assert all(world.gain(below) >= -0.01 for below in range(rung))
    assert rung == len(LADDER) - 1 or world.gain(rung) <= 0.30
    assert moves(found) <= 12


@given(worlds, st.floats(50.0, 20000.0), st.integers(0, 9))
def test_it_does_not_swing_where_data_is_the_limit(world: World, data: float, seed: int) -> None:
    """A rung that data does not pay for is tried ever more seldom."""
    found = list(sizes(LadderController(LADDER), world._replace(data=data, noise=0.01), 400, seed))
    assert moves(found) <= 24
    assert moves(found[200:]) <= 6


def test_nothing_is_known_below_two_sizes() -> None:
    """The first rung is tried, and given back where it does not pay: here all costs are by the sample."""
    controller = LadderController(LADDER)
    found = list(sizes(controller, World(fixed=0.0), 60))
    assert found[:8] == [32, 32, 64, 64, 64, 32, 32, 32]  # one window to settle, two to measure
    assert set(found[8:]) == {32}
    assert controller.cost is not None
    assert controller.cost.fixed_share(32) == pytest.approx(0.0, abs=1e-9)


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


def test_a_little_stall_takes_nothing_back_that_pays() -> None:
    """Data for 1500 samples a second: 64 gives 780 and waits for nothing, 128 1123, 256 waits 15 % and gives a third more."""
    assert list(sizes(LadderController(LADDER), World(data=1500.0, fixed=0.05), 60))[-1] == 256


def test_a_trainer_that_waits_does_not_grow() -> None:
    """Data is the limit from the begin: nothing is tried."""
    assert set(sizes(LadderController(LADDER), World(data=300.0), 100)) == {32}


def test_what_data_does_not_pay_for_is_tried_ever_more_seldom() -> None:
    """Data for 495 samples a second, and a step of 32 takes 485 of them: 64 is tried after 8 windows, 16, 32, …"""
    found = list(sizes(LadderController(LADDER), World(data=495.0), 400))
    tries = [at for at, (before, after) in enumerate(itertools.pairwise(found)) if (before, after) == (32, 64)]
    between = [after - before for before, after in itertools.pairwise(tries)]
    assert len(between) >= 4
    assert all(1.5 * before < after for before, after in itertools.pairwise(between))


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
    """In any of the windows: it ends at the same size without a rung given back, and what is known not to pay is not tried again."""
    found = paused(World(), at)
    assert (found[-1], found) == (256, sorted(found))
    assert moves(paused(World(fixed=0.0), 20 + at)) == 2


def test_another_model_makes_old_figures_void() -> None:
    """Steps become twice as long by the sample: what was known of smaller sizes is forgotten, not compared with."""
    controller = LadderController(LADDER)
    list(sizes(controller, World(), 20))
    list(sizes(controller, World(fixed=0.0, each=0.005), 5))
    assert controller.cost is None


def test_memory_is_a_ceiling() -> None:
    """At the next window, for good; the user's own size always is."""
    controller = LadderController(LADDER)
    assert list(sizes(controller, World(), 20))[-1] == 256
    controller.limit(1)
    move = controller.decide(StepsWindow())
    assert move is not None
    assert (move.size, move.why) == (64, "a step ran out of memory")
    assert set(sizes(controller, World(), 100)) == {64}
    controller.limit(-1)
    assert list(sizes(controller, World(), 1)) == [32]


def test_what_is_said() -> None:
    """Each move says its figures."""
    controller, said = LadderController((32, 64, 128)), []
    for world, windows in ((World(), 12), (World(data=300.0), 12)):
        for _ in range(windows):
            if move := controller.decide(world.window(controller.size, random.Random(0))):
                said.append(f"{move.size}: {move.why}")
    assert said == [
        "64: what a step of 32 costs whatever its size is not known: trying 64 tells",
        "128: 61 % of a step of 82 ms do not depend on its size: 44 % more samples a second expected",
        "64: the trainer waits for data 73 % of the time, and 64 would give about as many samples a second",
        "32: the trainer waits for data 62 % of the time, and 32 would give about as many samples a second",
    ]


@given(worlds, st.integers(0, 40), st.integers(0, 9))
def test_a_state_goes_on(world: World, cut: int, seed: int) -> None:
    """Through JSON: the same size, and it comes to rest at the same one; another ladder's is refused."""
    made, again = LadderController(LADDER), LadderController(LADDER)
    list(sizes(made, world, cut, seed))
    again.load_state_dict(json.loads(json.dumps(made.state_dict())))
    assert (again.size, again.cost) == (made.size, made.cost)
    assert list(sizes(again, world, 60, seed))[-1] == list(sizes(made, world, 60, seed))[-1]
    with pytest.raises(ValueError, match=r"of the ladder \(32, 64, 128, 256\), and this one is \(32, 64\)"):
        LadderController(LADDER[:2]).load_state_dict(made.state_dict())
