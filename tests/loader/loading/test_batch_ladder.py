"""batch_ladder of fb.WebLoader: all samples in their order, one size for all ranks at the same step, and who is told."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.ranks import run_ranks

import forebay_loader as fb
from forebay_loader.batches.pad import padded
from forebay_loader.loading.batch_ladder import BatchJoin

wds = pytest.importorskip("webdataset")
torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore")


class Clock:
    """Seconds that pass only where a test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def trained(self, batch: Any, fixed_s: float = 0.05) -> int:
        """One step's work on a batch; how many samples it had."""
        self.now_s += fixed_s + 0.0005 * len(batch)
        return len(batch)


def numbers(count: int, wait: Any = None) -> Iterator[int]:
    for number in range(count):
        if wait is not None:
            wait()
        yield number


def loader(count: int, clock: Clock, wait: Any = None, batch: int = 4, **how: Any) -> Any:
    """Tensors of 4 of the numbers below ``count``; ``wait()`` is called for each of them."""
    how = {"batch_size": None, "batch_ladder": (4, 8, 16), "batch_ladder_steps": 5, "steps_timeout_s": 20.0, **how}
    data = wds.DataPipeline(lambda: numbers(count, wait), wds.batched(batch, collation_fn=torch.tensor))
    made = fb.WebLoader(data, **how)
    made.ladder._clock = clock
    return made


@pytest.mark.webdataset
def test_every_sample_in_its_order() -> None:
    """Whatever the sizes, nothing is lost, twice or moved; the last batch is what is left. Sizes are told before their batches."""
    clock, told, found, sizes = Clock(), [], [], []
    made = loader(1003, clock, on_batch_size=told.append)
    for batch in made:
        assert made.ladder.size == (told[-1] if told else 4)
        found += batch.tolist()
        sizes.append(clock.trained(batch))
    assert found == list(range(1003))
    assert (told, sorted(set(sizes[:-1]))) == ([8, 16], [4, 8, 16])
    assert sizes[:-1] == sorted(sizes[:-1])
    assert sizes[-1] == (1003 - sum(sizes[:-1]))
    told_of = made.stalls()
    assert (told_of.steps, told_of.samples, told_of.batch_size) == (len(sizes), 1003, sizes[-1])


@pytest.mark.webdataset
def test_workers_are_told_nothing() -> None:
    """Two workers: the samples come in the order in which they come without a ladder."""
    found = []
    for how in ({"batch_ladder": None}, {"batch_ladder": (4, 8, 16), "batch_ladder_steps": 3}):
        data = wds.DataPipeline(lambda: numbers(403), wds.split_by_worker, wds.batched(4, collation_fn=torch.tensor))
        made = fb.WebLoader(data, batch_size=None, num_workers=2, **how)
        clock = Clock()
        if made.ladder is not None:
            made.ladder._clock = clock
        batches = []
        for batch in made:
            clock.trained(batch)
            batches.append(batch.tolist())
        found.append([number for batch in batches for number in batch])
        assert max(map(len, batches)) == (4 if made.ladder is None else 16)
    assert found[0] == found[1]
    assert sorted(found[0]) == list(range(403))


def test_decisions_are_in_the_state_and_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Step, size and reason; a loader that loads it begins with that size, tells it, and is refused another ladder's."""
    clock, told = Clock(), []
    made = loader(2000, clock)
    for batch in made:
        clock.trained(batch)
    state = json.loads(json.dumps(made.ladder.state_dict()))
    assert [(one["step"], one["size"]) for one in state["decisions"]] == [(15, 8), (30, 16)]
    assert state["batches"] == 500
    said = [record.getMessage() for record in caplog.records if "batch size" in record.getMessage()]
    assert said[0].startswith("batch size 4 -> 8 at step 15: trying whether 8 gives")
    again = loader(100, clock, on_batch_size=told.append)
    again.ladder.load_state_dict(state)
    assert (len(next(iter(again))), told) == (16, [16])
    with pytest.raises(ValueError, match="of the ladder"):
        loader(100, clock, batch_ladder=(4, 8)).ladder.load_state_dict(state)


def test_data_that_is_slow_gives_back(caplog: pytest.LogCaptureFixture) -> None:
    """The clock runs while samples are read: the size goes back to the user's, and never below."""
    clock, told = Clock(), []
    made = loader(6000, clock, wait=lambda: setattr(clock, "now_s", clock.now_s + (0.02 if sum(sizes) > 2000 else 0.0)))
    made.ladder._on_batch_size = told.append
    sizes: list[int] = []
    for batch in made:
        sizes.append(clock.trained(batch))
    assert told[:4] == [8, 16, 8, 4]
    assert min(sizes) == 4
    assert any("the trainer waits for data" in record.getMessage() for record in caplog.records)


def test_out_of_memory() -> None:
    """The size goes back at once and stays; at the user's own there is nothing to give back."""
    clock, sizes = Clock(), []
    made = loader(4000, clock)
    for batch in made:
        if len(batch) == 16:
            assert made.ladder.out_of_memory() == 8
            continue
        sizes.append(clock.trained(batch))
    assert max(sizes) == 8
    assert made.ladder.decisions[-1]["why"] == "a step ran out of memory"
    with pytest.raises(RuntimeError, match="ran out of memory at 4 samples, the first size"):
        loader(100, clock).ladder.out_of_memory()


def test_a_pipeline_that_goes_on_has_a_ladder_of_its_own() -> None:
    """compose() copies; the loader comes through pickle."""
    made = fb.WebLoader([1, 2], batch_size=None, batch_ladder=(1, 2))
    assert made.compose(wds.map(abs)).ladder is not made.ladder
    assert pickle.loads(pickle.dumps(made)).ladder.size == 1


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"batch_ladder": (32,)}, "two sizes or more"),
        ({"batch_ladder": (32, 48)}, "multiples of the first"),
        ({"batch_ladder": (64, 32)}, "that ascend"),
        ({"batch_ladder": 32}, "batch sizes such as"),
        ({"batch_ladder": (0, 32)}, "batch sizes such as"),
        ({"on_batch_size": print}, "none was given"),
        ({"batch_ladder": (32, 64), "on_batch_size": 0.1}, "a function of the new batch size"),
        ({"batch_ladder": (32, 64), "batch_ladder_steps": 0}, "a number of steps"),
    ],
)
def test_mistaken_arguments(how: dict[str, Any], text: str) -> None:
    """Refused where they are written."""
    with pytest.raises((TypeError, ValueError), match=text):
        fb.WebLoader([1, 2], batch_size=None, **how)


def test_batches_of_another_size() -> None:
    """Said at the first batch, not when two are put together."""
    with pytest.raises(ValueError, match=r"batch_ladder begins with 4, .* a Tensor of shape \(8,\)"):
        next(iter(loader(100, Clock(), batch=8)))


def lengths(count: int, of: Any, collate: Any, **how: Any) -> Any:
    """Sequences of ``of(number)`` entries, in batches of 4 that ``collate`` makes; it may grow to 8 and 16."""
    clock = Clock()
    data = wds.DataPipeline(lambda: ((torch.full((of(n),), n), n) for n in range(count)), wds.batched(4, collation_fn=collate))
    made = fb.WebLoader(data, batch_size=None, batch_ladder=(4, 8, 16), batch_ladder_steps=5, **how)
    made.ladder._clock = clock
    return made, clock


def to_the_longest(samples: list[Any]) -> Any:
    return torch.nn.utils.rnn.pad_sequence([sample for sample, _ in samples], batch_first=True), [number for _, number in samples]


def trained_numbers(made: Any, clock: Clock) -> tuple[list[int], list[int]]:
    """What was trained on, and in batches of which sizes."""
    found, sizes = [], []
    for batch in made:
        found += list(map(int, batch[1]))
        sizes.append(clock.trained(batch[0]))
    return found, sizes


@pytest.mark.webdataset
def test_padded_batches_grow() -> None:
    """Each padded to its own longest by fb.padded: they are padded on, and nothing is lost."""
    found, sizes = trained_numbers(*lengths(400, lambda n: 1 + n % 97, fb.padded(0)))
    assert found == list(range(400))
    assert set(sizes) >= {4, 8, 16}


def test_unlike_batches_are_refused_before_training() -> None:
    """Padded by somebody else: said at the second batch, with what to do, and not at the first growth."""
    batches = iter(lengths(400, lambda n: 1 + n, to_the_longest)[0])
    assert len(next(batches)[1]) == 4
    with pytest.raises(ValueError, match=r"these 2 do not fit: .*fb\.padded"):
        next(batches)


def test_unlike_batches_later_end_no_run(caplog: pytest.LogCaptureFixture) -> None:
    """From then on the batches are of the user's own size; every sample comes once."""
    told: list[int] = []
    found, sizes = trained_numbers(*lengths(480, lambda n: 3 if n == 399 else 2, to_the_longest, on_batch_size=told.append))
    assert found == list(range(480))
    assert sizes[-1] == 4 < max(sizes)
    assert told[-1] == 4
    assert [record.getMessage() for record in caplog.records if "batch size stays at 4" in record.getMessage()]


def test_several_ranks_and_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that cannot agree do not begin."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(fb.StepsError, match="batch_ladder needs one decision for all ranks: call init_process_group"):
        next(iter(loader(100, Clock())))


def followed(rank: int, *, fixed: bool, stop: dict[int, int] | None = None, slow: int = -1) -> list[Any]:
    """What a rank sees in three iterations: the sizes of all steps, what it was told, what is in its state. ``stop``: where it leaves
    the second one; ``slow``: the rank whose data is slow in the third; ``fixed``: ranks do not vote on steps, for a number was said.
    """
    clock, told, sizes = Clock(), [], []
    made = loader(1200, clock, wait=lambda: waits(len(sizes)), on_batch_size=told.append)
    if fixed:
        made.with_epoch(300)

    def waits(iteration: int) -> None:
        clock.now_s += 0.02 if rank == slow and iteration == 3 else 0.0

    for iteration in range(3):
        sizes.append([])
        for step, batch in enumerate(made):
            sizes[-1].append(clock.trained(batch, fixed_s=0.05 + 0.01 * rank))
            if iteration == 1 and stop is not None and step == stop[rank]:
                break
    return [sizes, told, [(one["step"], one["size"]) for one in made.ladder.decisions]]


@pytest.mark.parametrize("fixed", [False, True])
def test_ranks_take_one_decision(fixed: bool, tmp_path: Path) -> None:
    """Two gloo ranks with steps of different length: the same sizes at the same steps; both give back what rank 0 waits for."""
    ends = run_ranks(2, lambda rank: followed(rank, fixed=fixed, slow=0), tmp_path)
    assert not [end.error for end in ends if end.error or end.hung]
    assert ends[0].value == ends[1].value
    sizes, told, _ = ends[0].value
    assert told[:4] == [8, 16, 8, 4]
    assert set(sizes[0][:-1]) == {4, 8, 16}
    assert sum(sizes[0]) == 1200
    assert any("batch size 4 -> 8" in line for line in ends[0].said)
    assert not any("batch size" in line for line in ends[1].said)  # once is enough


@pytest.mark.parametrize("fixed", [False, True])
def test_ranks_that_left_apart_agree_again(fixed: bool, tmp_path: Path) -> None:
    """One leaves the second iteration early, the other behind a decision: nobody hangs, and the third is as one again."""
    ends = run_ranks(2, lambda rank: followed(rank, fixed=fixed, stop={0: 3, 1: 12}), tmp_path)
    assert not [end.error for end in ends if end.error or end.hung]
    assert ends[0].value[0][2] == ends[1].value[0][2]
    left = [len(end.value[0][1]) for end in ends]
    assert left[0] == 4 <= left[1]


def uneven(rank: int) -> list[int]:
    """Samples of two iterations, of which rank 0 has a fourth."""
    clock = Clock()
    made = loader(400 if rank else 100, clock)
    return [sum(clock.trained(batch) for batch in made) for _ in range(2)]


def test_ranks_with_unequal_numbers_of_batches(tmp_path: Path) -> None:
    """All end with the rank that has fewest, and none waits."""
    ends = run_ranks(2, uneven, tmp_path)
    assert not [end.error for end in ends if end.error or end.hung]
    assert [end.value for end in ends] == [[100, 100], [100, 100]]


def test_unequal_steps_and_a_ladder(tmp_path: Path) -> None:
    """Who asked for them is told that a ladder needs equal ones."""
    ends = run_ranks(2, lambda rank: list(loader(100, Clock(), equal_steps=False)), tmp_path)
    assert all("leave out equal_steps=False" in end.error for end in ends)


def test_ranks_with_different_ladders(tmp_path: Path) -> None:
    """An error on both, before the first step."""
    ends = run_ranks(2, lambda rank: list(loader(100, Clock(), batch_ladder=(4, 8 << rank))), tmp_path)
    assert all("ranks differ in batch_ladder" in end.error for end in ends)


# Batches put together: every kind that webdataset and torch collate, and no guess where two are possible.


numpy = pytest.importorskip("numpy")

SIZE = 4


class Columns(NamedTuple):
    image: Any
    name: Any


def plain(value: Any) -> Any:
    """With arrays and tensors as lists, so that it can be compared."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def batch(first: int, count: int, kind: str) -> Any:
    numbers = list(range(first, first + count))
    names = [f"s{n}" for n in numbers]
    return {
        "tensor": torch.tensor(numbers),
        "array": numpy.array(numbers),
        "tuple": (torch.tensor(numbers), names, numpy.array(numbers)),
        "list": [torch.tensor(numbers), tuple(names)],
        "named": Columns(torch.tensor(numbers), names),
        "dict": {"x": torch.tensor(numbers), "in": {"y": numpy.array(numbers)}, "names": names},
        "lists of lists": (torch.tensor(numbers), [[n, n + 1, n + 2, n + 3] for n in numbers]),
        "samples": [{"x": torch.zeros(3) + n} for n in numbers],
        "texts": names,
    }[kind]


KINDS = ["tensor", "array", "tuple", "list", "named", "dict", "lists of lists", "samples", "texts"]


@pytest.mark.parametrize("kind", KINDS)
def test_as_one_large_batch(kind: str) -> None:
    """Two and a half batches are what one batch of ten would have been, of the same types."""
    join, parts = BatchJoin(SIZE), [batch(0, 4, kind), batch(4, 4, kind), batch(8, 2, kind)]
    made, whole = join(parts), batch(0, 10, kind)
    assert plain(made) == plain(whole)
    assert type(made) is type(whole)


def test_the_order_of_looks_does_not_matter() -> None:
    """A batch of a worker that had no more tells nothing; the next one does."""
    join = BatchJoin(SIZE)
    join.look(batch(0, 2, "tuple"))
    assert plain(join([batch(0, 2, "tuple"), batch(2, 4, "tuple")])) == plain(batch(0, 6, "tuple"))
    with pytest.raises(ValueError, match="no batch had 4 samples"):
        BatchJoin(SIZE)([batch(0, 2, "tuple"), batch(2, 2, "tuple")])


@pytest.mark.parametrize(
    ("odd", "text"),
    [
        (torch.zeros(8, 2), r"one of them has a Tensor of shape \(8, 2\)"),
        ({"x": torch.zeros(4), "n": 3}, "one of them has a int"),
        ([["a"] * 4] * 4, "samples or columns"),
    ],
)
def test_what_cannot_be_told(odd: Any, text: str) -> None:
    """Refused at the first batch, long before one is put together."""
    with pytest.raises(ValueError, match=text):
        BatchJoin(SIZE).look(odd)


@pytest.mark.parametrize("make", [torch.tensor, numpy.array], ids=["tensor", "array"])
@pytest.mark.parametrize("kind", [dict, tuple])
def test_what_fb_padded_made_is_padded_on(make: Any, kind: Any) -> None:
    """As one batch of all samples: with the value that fills, and False in the mask."""
    samples = [kind(enumerate([make([n] * (n + 1)), make(n)])) if kind is dict else (make([n] * (n + 1)), make(n)) for n in range(8)]
    pad = padded(0, value=-1, edges=(3, 6))
    made = BatchJoin(SIZE, pad)([pad(samples[:4]), pad(samples[4:])])
    assert plain(made) == plain(pad(samples))
    assert [type(each) for each in (made.values() if kind is dict else made)] == [type(make([0]))] * 3


def test_only_what_fb_padded_made_is_padded_on() -> None:
    """A batch without the mask was made otherwise: what fills it nobody knows."""
    parts = [(torch.zeros(4, 7), torch.zeros(4)), (torch.zeros(4, 9), torch.zeros(4))]
    with pytest.raises(ValueError, match=r"these 2 do not fit: .* let fb\.padded do it"):
        BatchJoin(SIZE, padded(0))(parts)


def test_other_axes_are_not_padded_on() -> None:
    """Not even where one of them has 1, which numpy would repeat."""
    pad = padded("x")
    parts = [pad([{"x": numpy.ones((length, rest))}] * 4) for length, rest in ((2, 3), (4, 1))]
    with pytest.raises(ValueError, match=r"differs in other axes: \[\(1,\), \(3,\)\]"):
        BatchJoin(SIZE, pad)(parts)


@pytest.mark.parametrize("longest", [2, 3])
def test_parts_of_different_types(longest: int) -> None:
    """Nothing behind the point is lost, padded on or not."""
    pad = padded("x")
    parts = [pad([{"x": torch.tensor([1, 2])}] * 2), pad([{"x": torch.full((longest,), 0.25)}] * 2)]
    assert BatchJoin(2, pad)(parts)["x"][2:, :2].tolist() == [[0.25, 0.25]] * 2
