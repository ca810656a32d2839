"""``applied``: one, none or several samples of one, and nothing that a shard would not give back as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from forebay_stage.errors import SampleFailed
from forebay_stage.steps import applied

SAMPLE = {"__key__": "d/a", "__url__": "s.tar", "txt": b"text"}


def failure(step: Callable[[Any], Any]) -> SampleFailed:
    with pytest.raises(SampleFailed) as caught:
        list(applied([step], dict(SAMPLE)))
    return caught.value


def returning(**fields: object) -> Callable[[Any], Any]:
    return lambda sample: {"__key__": "b", "txt": b"", **fields}


def halves(sample: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for number in range(2):
        yield {"__key__": f"{sample['__key__']}_{number}", "txt": sample["txt"]}


def test_no_step_gives_the_sample() -> None:
    """Without steps the sample comes out as it went in."""
    assert list(applied([], SAMPLE)) == [SAMPLE]


def test_steps_follow_each_other() -> None:
    """Each step sees every sample of the one before, in order; what has no URL gets that of its origin."""
    found = list(applied([halves, halves, lambda sample: None if sample["__key__"].endswith("0_1") else sample], dict(SAMPLE)))
    assert [(sample["__key__"], sample["__url__"]) for sample in found] == [(f"d/a_{end}", "s.tar") for end in ("0_0", "1_0", "1_1")]


def test_samples_are_made_one_at_a_time() -> None:
    """A step that gives many is asked for the next only when the one before has been taken: memory does not hold them all."""
    made = []

    def many(sample: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for number in range(100):
            made.append(number)
            yield {**sample, "__key__": f"k{number}"}

    samples = applied([many, lambda sample: sample], dict(SAMPLE))
    assert next(samples)["__key__"] == "k0"
    assert made == [0]


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (lambda sample: 7, "it returned 7 (int)"),
        (lambda sample: b"bytes", "it returned b'bytes' (bytes)"),
        (lambda sample: [sample, None], "it returned None (NoneType) where a sample"),
        (lambda sample: {"txt": b""}, "__key__ None (NoneType)"),
        (returning(__key__=""), "__key__ '' (str)"),
        (returning(__key__=b"b"), "__key__ b'b' (bytes)"),
        (returning(__key__="v1.0"), "the key 'v1.0'"),
        (lambda sample: {"__key__": "b"}, "without a field"),
        (returning(txt="text"), "'text' (str) as field 'txt'"),
        (returning(JPG=b""), "a field named 'JPG'"),
        (lambda sample: {"__key__": "b", "": b""}, "a field named ''"),
        (lambda sample: {"__key__": "b", 1: b""}, "a field named 1"),
        (returning(**{"a/b": b""}), "a field named 'a/b'"),
    ],
)
def test_nonsense_is_that_samples_failure(step: Callable[[Any], Any], said: str) -> None:
    """What is no sample fails the one it was made of, by its key."""
    failed = failure(step)
    assert failed.key == "d/a"
    assert said in failed.cause


def test_what_a_step_raises_is_that_samples_failure() -> None:
    """Before and while it gives samples; the key is that of the sample it was given, though the step changed it."""

    def renaming(sample: dict[str, Any]) -> Iterator[dict[str, Any]]:
        sample["__key__"] = "other"
        yield sample
        raise KeyError("txt")

    failed = failure(renaming)
    assert (failed.key, failed.cause) == ("d/a", "KeyError: 'txt'")
    assert "renaming" in failed.step_name
    assert isinstance(failed.__cause__, KeyError)


def test_a_lack_of_memory_is_nobodys_failure() -> None:
    """The same sample passes on another machine, so the task has to be tried again."""

    def greedy(sample: dict[str, Any]) -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        list(applied([greedy], dict(SAMPLE)))
