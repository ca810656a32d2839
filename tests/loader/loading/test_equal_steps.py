"""fb.WebLoader over real gloo ranks, where it matters with real workers: equally many steps, and never a rank that waits for ever."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.fake_proxy import FakeServer
from support.lengths import ordinarily
from support.ranks import End, run_ranks
from support.sidecar import wait_until
from support.warm_python import python_program

import forebay_loader as fb
from forebay_loader.loading import step_vote

wds = pytest.importorskip("webdataset")
torch = pytest.importorskip("torch")

SIZES = (9, 2, 7, 1, 8, 3)  # samples of the shards: uneven
SAMPLE_BYTES = 10
ALL = sorted(f"{shard:03d}-{n:03d}" for shard, size in enumerate(SIZES) for n in range(size))
COUNTS = {f"{number:03d}.tar": size for number, size in enumerate(SIZES)}
PATTERN = f"s3://bucket/{{000..{len(SIZES) - 1:03d}}}.tar"
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("shards", "alone")]


def key(sample: dict[str, Any]) -> str:
    return str(sample["__key__"])


def dataset(urls: Any = PATTERN, batch: int = 2, **how: Any) -> Any:
    how = {"shardshuffle": True, "nodesplitter": wds.split_by_node, **how}
    return fb.WebDataset(urls, **how).map(key).listed(batch)


def loader(data: Any = None, workers: int = 0, **how: Any) -> Any:
    """Without a worker: ranks vote on batches that are at hand, wherever those were read. Where workers matter, a test asks for some."""
    how = {"batch_size": None, "num_workers": workers, "steps_timeout_s": 20.0, **how}
    return fb.WebLoader(dataset() if data is None else data, **how)


def epochs(made: Any, n: int = 2) -> list[list[list[str]]]:
    return [list(made) for _ in range(n)]


def steps(ends: list[End]) -> list[list[int]]:
    """For each rank, the number of batches of each epoch."""
    assert not [end.error for end in ends if end.error or end.hung]
    return [[len(epoch) for epoch in end.value] for end in ends]


def keys(ends: list[End], epoch: int) -> list[str]:
    return [one for end in ends for batch in end.value[epoch] for one in batch]


def nothing_twice(ends: list[End], epochs: int) -> None:
    for epoch in range(epochs):
        assert len(set(keys(ends, epoch))) == len(keys(ends, epoch))


WORLDS = ordinarily(2, of=4, what="worlds whose ranks vote")


@pytest.mark.parametrize(("size", "stay"), [(2, True), (3, False), (2, False), (3, True)][:WORLDS])
def test_ranks_vote(size: int, stay: bool, tmp_path: Path) -> None:
    """Uneven shards, workers of one epoch and persistent ones: as many steps on all ranks, nothing twice, what is dropped is said."""
    ends = run_ranks(size, lambda rank: epochs(loader(workers=2, persistent_workers=stay), 3), tmp_path)
    each = steps(ends)
    assert all(counts == each[0] for counts in each)
    assert min(each[0]) > 0
    nothing_twice(ends, 3)
    said = [line for end in ends for line in end.said if "drops" in line]
    assert said
    assert all("`forebay index` makes this exact" in line for line in said)


def test_a_vote_may_repeat_instead(tmp_path: Path) -> None:
    """tail="repeat": every rank goes on from the beginning until the last one has had its all; no sample is left out."""
    ends = run_ranks(2, lambda rank: epochs(loader(tail="repeat")), tmp_path)
    each = steps(ends)
    assert each[0] == each[1]
    for epoch in range(2):
        assert set(keys(ends, epoch)) == set(ALL)


DIFFER = {
    "seed": "seed: 0 on rank 0, 1 on rank 1",
    "epoch": "epoch=: 0 on rank 0, 1 on rank 1",
    "urls": "shards listed: 6 on rank 0, 5 on rank 1",
    "part": "rank 0 and rank 1 both read as rank 0 of 2, and nobody reads as rank 1",
    "batches": "batches an epoch (with_epoch, batches_per_epoch): 3 on rank 0, 4 on rank 1",
}


def differing(rank: int, how: str) -> Any:
    """A data set that this rank was given wrongly."""
    urls = f"s3://bucket/{{000..{len(SIZES) - 1 - rank:03d}}}.tar" if how == "urls" else PATTERN
    part = {"data_parallel": (0, 2)} if how == "part" else {}
    return dataset(urls, seed=rank * (how == "seed"), epoch=rank * (how == "epoch"), **part)


def refusals(refused: Callable[[str], object], ways: Sequence[str]) -> list[str]:
    """What a rank that goes from one way to the next is told in each."""
    said = []
    for how in ways:
        with pytest.raises(fb.StepsError) as caught:
            refused(how)
        said.append(str(caught.value))
    return said


def all_said(ends: list[End], ways: Sequence[str]) -> None:
    for end in ends:
        assert not end.error
        for how, said in zip(ways, end.value, strict=True):
            assert f"ranks do not read one epoch together: {DIFFER[how]}" in said


def test_ranks_that_would_share_out_different_orders(tmp_path: Path) -> None:
    """Another seed, epoch, list or the same part on each rank: shards would be read twice and others by nobody, so no rank begins."""
    ways = ["seed", "epoch", "urls", "part"]
    all_said(run_ranks(2, lambda rank: refusals(lambda how: list(loader(differing(rank, how))), ways), tmp_path), ways)


def test_a_number_does_not_hide_what_differs(tmp_path: Path) -> None:
    """With exactly n batches, too: what differs is said on all ranks, with both values, once all have come."""

    def counted(rank: int, how: str) -> None:
        made = loader(differing(rank, how), batches_per_epoch=3 + rank * (how == "batches"))
        for _ in made:
            wait_for_all(made)

    ways = list(DIFFER)
    all_said(run_ranks(2, lambda rank: refusals(lambda how: counted(rank, how), ways), tmp_path), ways)


def test_draws_of_the_same_part(tmp_path: Path) -> None:
    """resampled=True and one data_parallel on all ranks: every rank would draw the same shards."""

    def rank_of(rank: int) -> Any:
        made = loader(dataset(resampled=True, data_parallel=(0, 2)))
        for _ in itertools.islice(made, 3):
            wait_for_all(made)

    for end in run_ranks(2, rank_of, tmp_path):
        assert DIFFER["part"] in end.error


def test_a_number_keeps_nobody_waiting(tmp_path: Path) -> None:
    """A loop of n batches that rank 0 has to itself, and a loader of all ranks after it: nobody is missed, nothing is mistaken."""

    def rank_of(rank: int) -> Any:
        alone = [list(loader(batches_per_epoch=5)) for _ in range(1 - rank)]
        return [list(loader(batches_per_epoch=3)) for _ in range(2)] + alone

    ends = run_ranks(2, rank_of, tmp_path)
    assert steps(ends) == [[3, 3, 5], [3, 3]]


def wait_for_all(made: Any) -> None:
    """Until every rank has left word: what it then does not say was not compared."""
    made._words.wait(30.0)


def test_a_number_is_exact(tmp_path: Path) -> None:
    """Exactly n on every rank, less or more than there is, said in either way; it takes no process group."""

    def rank_of(rank: int) -> Any:
        made = [loader().with_epoch(12), loader(batches_per_epoch=3)]
        return [list(one) for one in made for _ in range(2)]

    assert steps(run_ranks(2, rank_of, tmp_path, group=False)) == [[12, 12, 3, 3]] * 2


def test_ranks_stay_in_one_order(tmp_path: Path) -> None:
    """A rank that needs more passes than the others for its n batches is in the same epoch as they are, the next time."""

    def rank_of(rank: int) -> Any:
        made = loader(dataset(["s3://bucket/000.tar", "s3://bucket/001.tar"], batch=1)).with_epoch(9)
        return [list(made) for _ in range(3)]

    ends = run_ranks(2, rank_of, tmp_path)
    for epoch in range(3):
        heads = {end.value[epoch][0][0][:3] for end in ends}
        assert heads == {"000", "001"}  # one shard each, never the same one on both


def test_an_epoch_without_a_batch_is_an_error() -> None:
    """n batches of nothing cannot be had."""
    made = loader(dataset(empty_check=False).select(bool).slice(0), batches_per_epoch=2)
    with pytest.raises(fb.StepsError, match="2 batches an epoch were asked for, and pass after pass over the data has none"):
        list(made)


COUNTED = ordinarily(2, of=4, what="ways to end an epoch of counted samples")


@pytest.mark.parametrize(("tail", "group"), [("repeat", False), ("drop", True), ("repeat", True), ("drop", False)][:COUNTED])
def test_counted_samples_are_shared_out(tail: str, group: bool, tmp_path: Path) -> None:
    """Counts known: every worker reads as many samples, from the middle of shards; at most one a worker is read twice or not at all."""
    ends = run_ranks(3, lambda rank: epochs(loader(workers=2, tail=tail, counts=COUNTS)), tmp_path, group=group)
    each = steps(ends)
    assert each[0] == each[1] == each[2]
    for epoch in range(2):
        found = sorted(keys(ends, epoch))
        if tail == "repeat":
            assert set(found) == set(ALL)
            assert len(found) - len(ALL) < 6
        else:
            assert len(set(found)) == len(found) > len(ALL) - 6


def test_an_empty_rank(tmp_path: Path) -> None:
    """empty_check=False: no rank takes a step, and all come through all epochs."""
    one = ["s3://bucket/000.tar"]
    ends = run_ranks(2, lambda rank: epochs(loader(dataset(one, empty_check=False))), tmp_path)
    assert steps(ends) == [[0, 0]] * 2


def test_an_empty_rank_cannot_repeat(tmp_path: Path) -> None:
    """tail="repeat": there is nothing it could go on with, and an epoch without a step would look like one."""
    ends = run_ranks(2, lambda rank: list(loader(dataset(["s3://bucket/000.tar"], empty_check=False), tail="repeat")), tmp_path)
    assert "this rank has no batch at all" in ends[1].error
    assert ends[0].error.startswith("StepsError: rank 1 failed while it read step 1 of epoch 0")


@pytest.mark.parametrize("stay", [False, True])
def test_all_ranks_break(stay: bool, tmp_path: Path) -> None:
    """Leaving at the same step, as max_steps does: the next epoch is whole."""

    def rank_of(rank: int) -> Any:
        made = loader(workers=1, persistent_workers=stay)
        return [list(itertools.islice(made, 2)), *epochs(made)]

    each = steps(run_ranks(3 - stay, rank_of, tmp_path))
    assert all(counts == each[0] for counts in each)
    assert each[0][0] == 2 < each[0][1]


@pytest.mark.parametrize("stops", [(1, 3), (3, 1), (1, 2), (1, 99)])
def test_ranks_break_at_different_steps(stops: tuple[int, int], tmp_path: Path) -> None:
    """Who stays longer is sent on by who has begun the next epoch, and says so; from there on all are in step again."""

    def rank_of(rank: int) -> Any:
        made = loader(dataset(batch=1))
        return [list(itertools.islice(made, stops[rank])), *epochs(made)]

    ends = run_ranks(2, rank_of, tmp_path)
    each = steps(ends)
    assert each[0][1:] == each[1][1:]
    if stops == (1, 99):
        assert each[1][0] == 1  # where it would have taken steps alone
        assert "rank 1 ends epoch 0 after 1 batches, because another rank has begun the next" in "".join(ends[1].said)


@pytest.mark.parametrize("how", ["killed", "raises"])
def test_a_rank_that_ends_ends_the_others(how: str, tmp_path: Path) -> None:
    """Its process ends in the middle of an epoch: the others raise at their next step, not after the timeout, and name it."""

    def rank_of(rank: int) -> Any:
        for at, _ in enumerate(loader(dataset(batch=1), workers=1)):
            if rank == 1 and at == 1:
                if how == "raises":
                    raise KeyError("of the trainer's own")
                os.kill(os.getpid(), signal.SIGKILL)

    ends = run_ranks(3, rank_of, tmp_path)
    assert ends[1].error == ("gone without a word: -9" if how == "killed" else 'KeyError: "of the trainer\'s own"')
    for end in (ends[0], ends[2]):
        assert end.error.startswith("StepsError: ")
        assert "rank 1" in end.error


@pytest.fixture
def soon_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_vote, "NOTICE_S", 0.3)


@pytest.mark.usefixtures("soon_said")
def test_a_rank_that_stays_away(tmp_path: Path) -> None:
    """It has left the loop and lives on: the others warn, then raise after the timeout, and say which rank and where it was."""
    over = tmp_path / "over"

    def rank_of(rank: int) -> Any:
        made = loader(dataset(batch=1), steps_timeout_s=5.0)
        if rank == 1:
            list(itertools.islice(made, 1))
            wait_until(over.exists)
            return None
        try:
            return list(made)
        finally:
            over.touch()

    ends = run_ranks(2, rank_of, tmp_path)
    assert re.search(r"rank 0 has waited \d+ s for a vote\. No vote from rank 1 \(last heard", "".join(ends[0].said))
    assert "StepsError: rank 0: the vote on step 2 of epoch 0 failed" in ends[0].error
    assert "No vote from rank 1 (last heard of rank 1: step 1 of epoch 0; it left the loop after 1 batches)" in ends[0].error


@pytest.mark.usefixtures("soon_said")
def test_only_one_rank_iterates(tmp_path: Path) -> None:
    """A loop that one rank has to itself ends with an error that says equal_steps=False; with it, it is a loop like any other."""

    over = tmp_path / "over"

    def rank_of(rank: int) -> Any:
        if rank == 1:
            wait_until(over.exists)
            return None
        free = sum(len(batch) for batch in loader(equal_steps=False))
        try:
            list(loader(steps_timeout_s=1.0))
        except fb.StepsError as error:
            return free, str(error)
        finally:
            over.touch()

    end = run_ranks(2, rank_of, tmp_path)[0]
    free, text = end.value
    assert re.search(r"rank 0 has waited \d+ s for rank 1 to begin with this loader", "".join(end.said))
    assert free > 0
    assert "s for rank 1 to begin with this loader" in text
    assert "equal_steps=False" in text


def test_validation_on_one_rank_only(tmp_path: Path) -> None:
    """A data set that every rank reads whole needs no vote: rank 0 validates alone, between epochs of all."""

    def rank_of(rank: int) -> Any:
        train, validation = loader(), loader(dataset(nodesplitter=iter, batch=1))
        return [list(itertools.chain(train, validation if rank == 0 else ())) for _ in range(2)]

    ends = run_ranks(2, rank_of, tmp_path)
    each = steps(ends)
    assert [a - b for a, b in zip(*each, strict=True)] == [30, 30]


def test_two_loaders_take_turns(tmp_path: Path) -> None:
    """Each loader has its own vote: step by step in turn, and one within the other."""

    def rank_of(rank: int) -> Any:
        one, other = loader(workers=1), loader(dataset(batch=1))
        turns = [list(zip(one, other, strict=False)) for _ in range(2)]
        nested = [batch for batch in one for _ in itertools.islice(other, 2)]
        return [*turns, nested]

    each = steps(run_ranks(2, rank_of, tmp_path))
    assert each[0] == each[1]


def poisoned(sample: Any) -> Any:
    if sample["__key__"] == "000-003":
        raise ValueError("a sample that cannot be read")
    return sample["__key__"]


@pytest.mark.parametrize("stay", [False, True])
def test_a_worker_fails(stay: bool, tmp_path: Path) -> None:
    """Its rank raises what it raised; the others hear which rank it was; who catches it goes on with the next epoch."""

    def rank_of(rank: int) -> Any:
        data = fb.WebDataset(PATTERN, shardshuffle=False, nodesplitter=wds.split_by_node).map(poisoned).listed(1)
        made = loader(data, workers=1, persistent_workers=stay)
        found = []
        for _ in range(2):
            try:
                found.append([len(batch) for batch in made])
            except (ValueError, fb.StepsError) as error:
                found.append([f"{type(error).__name__}: {str(error).partition('; ')[0]}"])
        return found

    ends = run_ranks(2, rank_of, tmp_path)
    assert not [end.error for end in ends if end.error]
    assert ends[0].value[0][0].startswith("ValueError: Caught ValueError in DataLoader worker process 0.")
    assert ends[1].value[0] == ["StepsError: rank 0 failed while it read step 4 of epoch 0"]
    assert len(ends[0].value) == len(ends[1].value) == 2


def test_a_group_of_some_ranks(tmp_path: Path) -> None:
    """group=: ranks 0 and 2 take steps together, rank 1 has nothing to do with it."""

    def rank_of(rank: int) -> Any:
        group = torch.distributed.new_group([0, 2])
        if rank == 1:
            return [[]]
        return epochs(loader(dataset(group=group), group=group), 2)

    each = steps(run_ranks(3, rank_of, tmp_path))
    assert each[0] == each[2]
    assert min(each[0]) > 0


def test_another_group_than_the_data_sets(tmp_path: Path) -> None:
    """A data set for two of three ranks and no group: who should vote is not guessed."""
    ends = run_ranks(3, lambda rank: list(loader(dataset(data_parallel=(rank % 2, 2)))), tmp_path)
    for end in ends:
        assert "the process group has 3 ranks: name the group whose ranks share the data" in end.error


_LEAVES = """
import itertools, sys, time, warnings
warnings.simplefilter("ignore")
import torch.distributed as dist
import webdataset as wds
import forebay_loader as fb

rank, urls, meeting = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
made = fb.WebLoader(fb.WebDataset(urls, nodesplitter=wds.split_by_node).listed(1), batch_size=None)
left = list(itertools.islice(made, 2))
print(len(left), flush=True)
if rank == 1:
    sys.stdin.read()  # lives on, and does not come back to the loop
"""


def test_a_process_that_left_the_loop_ends(shards: FakeServer, tmp_path: Path) -> None:
    """At once, while the other rank lives on and does not come back to the loop."""
    environ = {**os.environ, "FOREBAY_URL": shards.url, "PYTHONPATH": os.pathsep.join(sys.path)}
    meeting, pipes = str(tmp_path / "meeting"), {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    ranks = [
        subprocess.Popen([sys.executable, "-c", _LEAVES, "0", PATTERN, meeting], env=environ, **pipes),
        python_program(["-c", _LEAVES, "1", PATTERN, meeting], environ, tmp_path, **pipes),
    ]
    try:
        assert ranks[0].wait(240) == 0
        assert ranks[1].poll() is None
        assert [rank.communicate(timeout=240)[0].strip() for rank in ranks] == [b"2", b"2"]
        assert ranks[1].wait(240) == 0
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def test_ranks_that_know_different_counts(tmp_path: Path) -> None:
    """One node's sidecar has counted, another's has not: nobody relies on counts, so no sample comes twice."""
    ends = run_ranks(2, lambda rank: epochs(loader(counts=COUNTS if rank else lambda urls: None), 2), tmp_path)
    assert steps(ends)[0] == steps(ends)[1]
    nothing_twice(ends, 2)


@pytest.mark.parametrize("stay", [False, True])
def test_counts_that_come_later(stay: bool, tmp_path: Path) -> None:
    """The first epoch has counted the samples: the next one drops none, unless its workers have begun by shards and stay."""

    def rank_of(rank: int) -> Any:
        asked = iter([None])
        return epochs(loader(workers=2, counts=lambda urls: next(asked, list(SIZES)), persistent_workers=stay), 3 - stay)

    ends = run_ranks(2, rank_of, tmp_path)
    assert steps(ends)[0] == steps(ends)[1]
    assert [set(keys(ends, epoch)) == set(ALL) for epoch in range(3 - stay)] == [False, not stay, not stay][: 3 - stay]


def test_one_iteration_at_a_time(tmp_path: Path) -> None:
    """The older of two iterations of one loader is refused its next batch, the newer one goes on."""

    def rank_of(rank: int) -> Any:
        made = loader(dataset(batch=1))
        old, new = iter(made), iter(made)
        next(old)
        next(new)
        with pytest.raises(fb.StepsError, match="iterated anew since"):
            next(old)
        return [list(new)]

    each = steps(run_ranks(2, rank_of, tmp_path))
    assert each[0] == each[1]
    assert each[0][0] > 0


def test_a_look_at_one_batch_on_one_rank(tmp_path: Path) -> None:
    """Rank 0 looked at a batch by itself: the epoch that follows is the same one on both ranks, no sample twice."""

    def rank_of(rank: int) -> Any:
        data = dataset()
        if rank == 0:
            next(iter(loader(data, equal_steps=False)))
        return epochs(loader(data), 2)

    ends = run_ranks(2, rank_of, tmp_path)
    assert steps(ends)[0] == steps(ends)[1]
    nothing_twice(ends, 2)


# Batches within a budget under equal steps: equally many samples are not equally many batches, so ranks vote.


def length(key: str) -> int:
    """Long samples in the first three shards, which rank 0 reads; short ones in the others."""
    return 8 if key < "003" else 1


def budgeted(splitter: Any = wds.split_by_node, behind: bool = False, **how: Any) -> Any:
    """``behind``: the batches are made by a stage of the loader's, not of the data set's."""
    data = fb.WebDataset(PATTERN, shardshuffle=False, nodesplitter=splitter).map(key)
    stage = fb.batched(max_tokens=16, length=length, collate=None)
    made = fb.WebLoader(data if behind else data.compose(stage), batch_size=None, num_workers=0, steps_timeout_s=20.0, **how)
    return made.compose(stage) if behind else made


@pytest.mark.parametrize(("behind", "tail"), [(False, None), (False, "repeat"), (True, "repeat")])
def test_counted_samples_are_no_counted_batches(behind: bool, tail: str | None, tmp_path: Path) -> None:
    """Shares of 15 samples each, of which one rank makes more batches: both stop at one step; with tail="repeat" nothing is left out."""
    ends = run_ranks(2, lambda rank: list(budgeted(behind=behind, tail=tail, counts=COUNTS)), tmp_path)
    assert not [end.error for end in ends if end.error or end.hung]
    assert len(ends[0].value) == len(ends[1].value)
    found = [one for end in ends for batch in end.value for one in batch]
    if tail == "repeat":
        assert set(found) == set(ALL)
    else:
        assert len(found) == len(set(found)) < len(ALL)
        assert any("drops" in line for end in ends for line in end.said)


@pytest.mark.webdataset
@pytest.mark.parametrize("how", [{"counts": COUNTS}, {"splitter": iter, "behind": True}, {"splitter": iter}])
def test_without_a_group_ranks_cannot_agree(how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither counts nor reading everything make batches equal: an error that says why."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(fb.StepsError, match=r"depends on their sizes, and no process group .* Call init_process_group first"):
        next(iter(budgeted(**how)))
