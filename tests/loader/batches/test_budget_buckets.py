"""Batches within a budget: no sample lost, twice or out of its bucket's order, none over the budget, always the same ones."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_loader.batches.batch_budget import BatchBudget, BudgetBuckets, SampleSize

Named = tuple[int, SampleSize]

lengths = st.integers(0, 40)
samples = st.lists(st.builds(SampleSize, lengths, lengths, lengths, st.sampled_from([None, (2, 3), (3, 2)])), max_size=60)
limit = st.none() | st.integers(1, 120)
edges = st.sets(st.integers(1, 40), max_size=4).map(lambda found: tuple(sorted(found)))


@st.composite
def budgets(draw: st.DrawFn) -> BatchBudget:
    found = draw(edges)
    limits = [draw(limit) for _ in range(4)]
    if all(one is None for one in limits):
        limits[0] = draw(st.integers(1, 10))
    pad_to: Any = draw(st.sampled_from(["longest", "edge", None] if found else ["longest", None]))
    return BatchBudget(*limits, buckets=found, pad_to=pad_to, max_waiting=draw(st.none() | st.integers(1, 5)))


def all_batches(budget: BatchBudget, sizes: list[SampleSize]) -> list[list[Named]]:
    buckets: BudgetBuckets[Named] = BudgetBuckets(budget)
    made = [batch for each in enumerate(sizes) for batch in buckets.add(each, each[1])]
    return made + buckets.flush()


def used(budget: BatchBudget, batch: list[Named]) -> dict[str, int]:
    """What a batch takes of each limit, counted anew."""
    sizes = [size for _, size in batch]
    key = "frames" if budget.by_frames else "tokens"
    found = {"samples": len(sizes), "bytes": sum(one.size_bytes for one in sizes)}
    for name in ("tokens", "frames"):
        values = [getattr(one, name) for one in sizes]
        longest = max(values)
        if budget.pad_to == "edge" and name == key:
            longest = next((edge for edge in budget.buckets if edge >= longest), longest)
        found[name] = sum(values) if budget.pad_to is None else len(values) * longest
    return found


def over(budget: BatchBudget, batch: list[Named]) -> list[str]:
    limits = {"samples": budget.max_samples, "bytes": budget.max_bytes, "frames": budget.max_frames, "tokens": budget.max_tokens}
    return [name for name, count in used(budget, batch).items() if (most := limits[name]) is not None and count > most]


@given(budgets(), samples)
def test_nothing_is_lost_twice_or_over(budget: BatchBudget, sizes: list[SampleSize]) -> None:
    """Each sample is in one batch, of its bucket and shape, behind those that came before; what is over the budget is one sample alone."""
    made = all_batches(budget, sizes)
    assert sorted(number for batch in made for number, _ in batch) == list(range(len(sizes)))
    in_order: dict[Any, list[int]] = {}
    for batch in made:
        (bucket,) = {(budget.bucket_of(size), size.shape) for _, size in batch}
        in_order.setdefault(bucket, []).extend(number for number, _ in batch)
        assert len(batch) == 1 or not over(budget, batch)
    assert all(numbers == sorted(numbers) for numbers in in_order.values())


@given(budgets(), samples)
def test_a_batch_is_as_large_as_it_can_be(budget: BatchBudget, sizes: list[SampleSize]) -> None:
    """The first sample of a bucket's next batch did not fit into the batch before, or nothing at all did; unless few may wait."""
    budget = replace(budget, max_waiting=None)
    in_bucket: dict[Any, list[list[Named]]] = {}
    for batch in all_batches(budget, sizes):
        in_bucket.setdefault((budget.bucket_of(batch[0][1]), batch[0][1].shape), []).append(batch)
    limits = {"samples": budget.max_samples, "bytes": budget.max_bytes, "frames": budget.max_frames, "tokens": budget.max_tokens}
    for batches in in_bucket.values():
        for batch, after in itertools.pairwise(batches):
            full = any(limits[name] is not None and count >= limits[name] for name, count in used(budget, batch).items())
            assert full or over(budget, [*batch, after[0]])


@given(budgets(), samples, st.integers(0, 60))
def test_what_waits_can_be_read_again(budget: BatchBudget, sizes: list[SampleSize], cut: int) -> None:
    """Cut anywhere: what waited, in the order of arrival, and then the rest give the batches that were still to come."""
    whole = all_batches(budget, sizes)
    before: BudgetBuckets[Named] = BudgetBuckets(budget)
    made = [batch for each in list(enumerate(sizes))[:cut] for batch in before.add(each, each[1])]
    after: BudgetBuckets[Named] = BudgetBuckets(budget)
    again = [batch for each in before.waiting for batch in after.add(each, each[1])]
    assert again == []
    made += [batch for each in list(enumerate(sizes))[cut:] for batch in after.add(each, each[1])]
    assert made + after.flush() == whole


@given(st.lists(st.integers(0, 30), max_size=60), st.integers(1, 4))
def test_few_batches_wait(shapes: list[int], most: int) -> None:
    """However many shapes there are; the one that leaves has waited for longest."""
    buckets: BudgetBuckets[int] = BudgetBuckets(BatchBudget(max_samples=3, max_waiting=most))
    for number, shape in enumerate(shapes):
        before = buckets.waiting
        made = buckets.add(number, SampleSize(shape=shape))
        assert len({shapes[one] for one in buckets.waiting}) <= most
        assert all(len(batch) == 3 or batch[0] == before[0] for batch in made)


@pytest.mark.parametrize(
    ("how", "batches"),
    [
        ({"max_samples": 2}, [[3, 1], [9, 2], [12]]),
        ({"max_tokens": 12}, [[3, 1], [9], [2], [12]]),  # 9 + 9 padded are 18
        ({"max_tokens": 12, "pad_to": None}, [[3, 1], [9, 2], [12]]),
        ({"max_tokens": 12, "buckets": (4,)}, [[9], [12], [3, 1, 2]]),  # the long ones are full; the short ones wait to the end
        ({"max_tokens": 12, "buckets": (4,), "pad_to": "edge"}, [[3, 1, 2], [9], [12]]),  # 3 x 4 are 12: full
        ({"max_tokens": 8, "pad_to": None}, [[3, 1], [9], [2], [12]]),  # 9 and 12 are alone, over the budget
    ],
)
def test_by_example(how: dict[str, Any], batches: list[list[int]]) -> None:
    """Five samples of 3, 1, 9, 2 and 12 tokens."""
    found = all_batches(BatchBudget(**how), [SampleSize(tokens) for tokens in (3, 1, 9, 2, 12)])
    assert [[size.tokens for _, size in batch] for batch in found] == batches


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({}, "give one of max_samples, max_bytes, max_frames, max_tokens"),
        ({"max_samples": 0}, "max_samples takes a whole number from 1"),
        ({"max_samples": 1, "max_waiting": 0}, "max_waiting takes a whole number from 1"),
        ({"max_tokens": 9, "buckets": (4, 4)}, "ascend, each once"),
        ({"max_tokens": 9, "pad_to": "edge"}, "there are no buckets"),
        ({"max_tokens": 9, "pad_to": "most"}, "'longest', 'edge' or None"),
        ({"max_tokens": 9, "oversize": "drop"}, "'alone' or 'raise'"),
    ],
)
def test_mistaken_budgets(how: dict[str, Any], text: str) -> None:
    """Refused where they are written."""
    with pytest.raises(ValueError, match=text):
        BatchBudget(**how)
