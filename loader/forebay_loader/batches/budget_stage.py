"""``fb.batched(…)``: batches within a budget, as a stage of any pipeline. ``fb.WebDataset`` keeps the state of what waits in it."""

from __future__ import annotations

from array import array
from itertools import chain
from typing import Any, Callable, Iterable, Iterator, Literal, Mapping, Optional, Sequence, Union

from forebay_loader.batches.batch_budget import BatchBudget, BudgetBuckets
from forebay_loader.batches.pad import PadCollation
from forebay_loader.batches.sample_size import Length, SampleSizes, named_sample
from forebay_loader.resume.cursor import Again, Made, cursor_here
from forebay_loader.resume.pass_state import refs_of
from forebay_loader.resume.sample_buffer import LOST

__all__ = ["BudgetStage", "Collate", "batched", "has_budget"]

Collate = Callable[[list[Any]], Any]
_WEBDATASET = PadCollation(())  # no field is padded: webdataset's own collation, of dicts in 0.2.86 too

_MOST_SHAPES = 16  # a data set may have any number


def batched(
    *,
    max_samples: Optional[int] = None,
    max_bytes: Optional[int] = None,
    max_frames: Optional[int] = None,
    max_tokens: Optional[int] = None,
    buckets: Sequence[int] = (),
    length: Union[Length, Mapping[str, Length], None] = None,
    shape: Optional[Length] = None,
    max_waiting: Optional[int] = None,
    pad_to: Optional[Literal["longest", "edge"]] = "longest",
    oversize: Literal["alone", "raise"] = "alone",
    collate: Optional[Collate] = _WEBDATASET,
    partial: bool = True,
) -> BudgetStage:
    """A stage that makes batches of as many samples as a budget allows, of similar length. For ``.compose`` and ``wds.DataPipeline``.

    The same samples in the same order give the same batches. Samples of a bucket keep their order. No batch is over the budget, except one
    sample that alone is. When the data set ends, the stage yields the incomplete batches. Ranks may get different numbers of batches:
    ``fb.WebLoader`` lets them vote.

    Args:
        max_samples: The most samples of a batch. At least one of the four limits must be given.
        max_bytes: The most bytes of a batch, counted from the sample's members in memory.
        max_frames: The most frames of a batch.
        max_tokens: The most tokens of a batch.
        buckets: Lengths in ascending order. A batch has samples whose lengths lie between the same two. Longer samples have a bucket of
            their own.
        length: The field that counts (its number, its first axis, or its length), or a function of the sample. It counts tokens, or frames
            if ``max_tokens`` is not given. ``{"tokens": …, "frames": …, "bytes": …}`` names each. The default for frames is the field
            ``frames``, which ``fb.video`` makes.
        shape: Samples of a batch have the same shape of this field. The first axis of frames (T x H x W x C) may differ. A function of the
            sample may return any hashable value instead.
        max_waiting: The most incomplete batches that wait for samples. Beyond that the stage yields the one that has waited longest. The
            default is 16 with ``shape``, else one for each bucket.
        pad_to: Tokens and frames are counted as padded to the ``"longest"`` sample of the batch, or to the ``"edge"`` of the bucket. None
            counts no padding.
        oversize: A sample that alone is over the budget: ``"alone"`` makes it a batch, ``"raise"`` raises.
        collate: Gets a list of samples and returns the batch. The default is webdataset's. None yields the list.
        partial: False drops the samples that still wait when the data set ends.

    Returns:
        The stage.

    Raises:
        TypeError: An argument has the wrong kind.
        ValueError: An argument has a value that cannot be. While it is read: a sample cannot be counted, or is over the budget; the text
            names it.

    Examples:
        >>> dataset = fb.WebDataset(urls).compose(fb.batched(max_bytes=10_000))
        >>> [len(batch["txt"]) for batch in dataset]
        [3, 3, 3, 3, 3]
    """
    if collate is not None and not callable(collate):
        raise TypeError(f"collate takes a function of a list of samples, or None; got {collate!r}")
    if max_waiting is None and shape is not None:
        max_waiting = _MOST_SHAPES
    budget = BatchBudget(max_samples, max_bytes, max_frames, max_tokens, tuple(buckets), pad_to, oversize, max_waiting)
    return BudgetStage(budget, SampleSizes(budget, length, shape), collate, partial=partial)


def has_budget(pipeline: Any) -> bool:
    """Whether a pipeline has batches within a budget, so that equally many samples are not equally many batches."""
    return any(isinstance(stage, BudgetStage) for stage in getattr(pipeline, "pipeline", ()))


class BudgetStage:
    """Samples in, batches out. It can be pickled where ``length`` and ``collate`` can."""

    state_kind = "budget"  # of what waits in it fb.WebDataset keeps the state, and reads it again

    def __init__(self, budget: BatchBudget, sizes: SampleSizes, collate: Optional[Collate], *, partial: bool) -> None:
        self.budget = budget
        self._sizes = sizes
        self.collate = collate
        self._partial = partial

    def __repr__(self) -> str:
        return f"<BudgetStage {self.budget}>"

    @property
    def made_of(self) -> str:
        """What must be the same for a state to mean the same batches."""
        waiting = "" if self.budget.max_waiting is None else f", {self.budget.max_waiting} waiting"
        shape = "" if self._sizes.shape is None else " by shape"
        return f"batched {self.budget}{waiting}{shape}{'' if self._partial else ' without partial ones'}"

    def __call__(self, samples: Iterable[Any]) -> Iterator[Any]:
        cursor, held = cursor_here(), None
        made = (lambda: -1) if cursor is None else cursor.made
        begun = _BudgetPass(self.budget)
        if cursor is not None:
            held = cursor.hold("budget", begun.state, begun.of_last)
        if cursor is None or held is None or cursor.again is None:
            return self._batches(begun, samples, made)
        begun.ended = held["ended"]
        return chain(self._waited(begun, held, cursor.again), self._batches(begun, () if begun.ended else samples, made))

    def _waited(self, begun: _BudgetPass, held: Mapping[str, Any], again: Again) -> Iterator[Any]:
        """What waited when the state was taken that is gone on from waits again; some of it is a batch that was due."""
        refs = refs_of(held)
        begun.taken, begun.given = held["taken"] - len(refs), held["batches"]
        for ordinal in refs:
            sample = again.one(ordinal)
            if sample is not LOST:
                begun.add(sample, self._sizes(sample), ordinal)
                yield from self._given(begun)

    def _batches(self, begun: _BudgetPass, samples: Iterable[Any], made: Callable[[], Any]) -> Iterator[Any]:
        for sample in samples:
            size = self._sizes(sample)
            if self.budget.oversize == "raise" and (excess := self.budget.excess(size)):
                raise ValueError(f"{named_sample(sample)}: a batch of it alone has {excess}. oversize='alone' makes it one all the same")
            begun.add(sample, size, made())
            yield from self._given(begun)
        begun.end(partial=self._partial)
        yield from self._given(begun)

    def _given(self, begun: _BudgetPass) -> Iterator[Any]:
        while begun.due:
            samples = [sample for sample, _ in begun.due[0]]
            batch = samples if self.collate is None else self.collate(samples)
            begun.give()
            yield batch


class _BudgetPass:
    """One pass: what waits, and what is due; each sample with the number of that of its pass which it was made of."""

    def __init__(self, budget: BatchBudget) -> None:
        self._buckets: BudgetBuckets[tuple[Any, Any]] = BudgetBuckets(budget)
        self.due: list[list[tuple[Any, Any]]] = []
        self.taken = 0  # samples
        self.given = 0  # batches
        self._last = array("i")
        self.ended = False  # what it takes from

    def add(self, sample: Any, size: Any, ordinal: Any) -> None:
        self.taken += 1
        self.due += self._buckets.add((sample, ordinal), size)

    def end(self, *, partial: bool) -> None:
        self.ended = True
        left = self._buckets.flush()
        if partial:
            self.due += left

    def give(self) -> None:
        """The first batch that is due is handed over now."""
        self._last = _ordinals(self.due.pop(0))
        self.given += 1

    def of_last(self) -> Made:
        """The samples of the batch that was given last."""
        return self._last

    def state(self) -> dict[str, Any]:
        """What waits, by the numbers of its pass."""
        waiting = [one for batch in self.due for one in batch] + self._buckets.waiting
        return {"kind": "budget", "refs": _ordinals(waiting), "taken": self.taken, "batches": self.given, "ended": self.ended}


def _ordinals(waiting: Iterable[tuple[Any, Any]]) -> "array[int]":
    return array("i", [ordinal for _, ordinal in waiting if isinstance(ordinal, int)])
